//! What the policy logged in this thread.

use std::cell::RefCell;

use crate::log::Level;

thread_local! {
    static LOGGED: RefCell<Option<Vec<(Level, String)>>> = const { RefCell::new(None) };
}

/// Runs `policy` and returns the lines it logged.
///
/// ```
/// use edge_router_policy::{log, testing};
///
/// let lines = testing::captured_log(|| log::warn("no session key"));
/// assert_eq!(lines, [(log::Level::Warn, "no session key".to_owned())]);
/// ```
pub fn captured_log(policy: impl FnOnce()) -> Vec<(Level, String)> {
    LOGGED.set(Some(Vec::new()));
    policy();
    LOGGED.take().unwrap_or_default()
}

pub(crate) fn record(level: Level, message: &str) {
    LOGGED.with_borrow_mut(|lines| {
        if let Some(lines) = lines {
            lines.push((level, message.to_owned()));
        }
    });
}
