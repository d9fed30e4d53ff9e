//! Where stored responses live.
//!
//! An engine keeps what `/v1/responses` made in its own memory: who asks for it later, cancels it, or
//! continues it, must be sent to the engine that made it (engine contract §11.2).

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use edge_router_policy::InstanceId;
use lru::LruCache;
use memchr::{memchr, memmem};

/// Responses remembered; the oldest are forgotten first.
const CAPACITY: NonZeroUsize = NonZeroUsize::new(16 * 1024).unwrap();

/// How response ids begin.
const ID: &[u8] = b"\"id\":\"resp_";

/// Which instance made which response.
#[derive(Debug)]
pub struct Homes(Mutex<LruCache<Box<str>, InstanceId>>);

impl Default for Homes {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(CAPACITY)))
    }
}

impl Homes {
    /// The instance that made the response `id`, if it is remembered.
    pub fn find(&self, id: &str) -> Option<InstanceId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied()
    }

    fn remember(&self, id: &str, instance: InstanceId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).put(id.into(), instance);
    }
}

/// Waits for the id of a response that `instance` is making.
#[derive(Debug)]
pub(super) struct Expected {
    homes: Arc<Homes>,
    instance: InstanceId,
}

impl Expected {
    pub(super) fn new(homes: &Arc<Homes>, instance: InstanceId) -> Self {
        Self { homes: Arc::clone(homes), instance }
    }

    /// Looks for the id in a body or a frame. Whether it was there.
    pub(super) fn seen_in(&self, text: &[u8]) -> bool {
        let id = response_id(text);
        if let Some(id) = id {
            self.homes.remember(id, self.instance);
        }
        id.is_some()
    }
}

/// The first response id in JSON text: that of the response itself, which comes before its parts.
fn response_id(text: &[u8]) -> Option<&str> {
    let start = memmem::find(text, ID)? + ID.len() - b"resp_".len();
    let length = memchr(b'"', &text[start..])?;
    std::str::from_utf8(&text[start..start + length]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_bodies_and_events() {
        let homes = Arc::new(Homes::default());
        let expected = Expected::new(&homes, 7);
        assert!(expected.seen_in(br#"{"id":"resp_861e","output":[{"id":"msg_1"}]}"#));
        assert!(expected.seen_in(b"data: {\"response\":{\"id\":\"resp_2\",\"object\":\"response\"}}\n\n"));
        assert!(!expected.seen_in(br#"{"id":"chatcmpl-1"}"#));
        assert_eq!(
            (homes.find("resp_861e"), homes.find("resp_2"), homes.find("resp_3")),
            (Some(7), Some(7), None)
        );
    }
}
