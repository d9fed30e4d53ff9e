//! Locking without a panic on poison: a test that failed while holding a lock must not hide its own message.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, whatever happened to its earlier holders.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
