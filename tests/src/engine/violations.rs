//! The list of requests that strict mode objects to.

use std::sync::Mutex;

use crate::lock::lock;

/// What strict mode has found, over restarts.
#[derive(Default)]
pub(crate) struct Violations {
    found: Mutex<Vec<String>>,
}

impl Violations {
    pub(crate) fn add(&self, found: Vec<String>) {
        lock(&self.found).extend(found);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        lock(&self.found).clone()
    }

    pub(crate) fn clear(&self) {
        lock(&self.found).clear();
    }
}
