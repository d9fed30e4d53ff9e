//! Lines in the router's log, marked with the policy's name.
//!
//! The router writes at most 20 lines a second per policy and counts the rest.
//! Natively the lines go to [`testing::captured_log`] if the test asks for
//! them, else nowhere.
//!
//! [`testing::captured_log`]: ../testing/fn.captured_log.html

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something must be done about it.
    Error,
    /// Something may have to be done about it.
    Warn,
    /// Worth knowing.
    Info,
    /// Worth knowing while looking for a fault.
    Debug,
}

/// Logs a line at [`Level::Error`].
pub fn error(message: &str) {
    write(Level::Error, message);
}

/// Logs a line at [`Level::Warn`].
pub fn warn(message: &str) {
    write(Level::Warn, message);
}

/// Logs a line at [`Level::Info`].
pub fn info(message: &str) {
    write(Level::Info, message);
}

/// Logs a line at [`Level::Debug`].
pub fn debug(message: &str) {
    write(Level::Debug, message);
}

#[cfg(target_arch = "wasm32")]
fn write(level: Level, message: &str) {
    crate::export::guest::log(level, message);
}

#[cfg(not(target_arch = "wasm32"))]
fn write(level: Level, message: &str) {
    crate::testing::record(level, message);
}
