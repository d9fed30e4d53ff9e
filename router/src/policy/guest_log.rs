//! Lines that a policy writes, on their way to the router's log.
//!
//! Never blocks and never fails: a policy that floods its output must not slow the router down, and
//! one that only prints must not trap.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWrite;
use tokio::time::Instant;
use tracing::Level;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// Lines written per second and policy.
const LINES_PER_SECOND: u32 = 20;
/// Longer lines are cut.
const MAX_LINE: usize = 1024;

/// The log of one policy.
#[derive(Debug, Clone)]
pub(super) struct GuestLog {
    policy: Arc<str>,
    window: Arc<Mutex<Window>>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    lines: u32,
    dropped: u64,
}

impl GuestLog {
    pub(super) fn new(policy: &str) -> Self {
        let window = Window { since: Instant::now(), lines: 0, dropped: 0 };
        Self { policy: policy.into(), window: Arc::new(Mutex::new(window)) }
    }

    /// Writes a line, or counts it where there were too many.
    pub(super) fn line(&self, level: Level, text: &str) {
        // A panic begins with an empty line.
        if text.trim_end().is_empty() {
            return;
        }
        let Some(dropped) = self.admit() else { return };
        let policy = &*self.policy;
        if dropped > 0 {
            tracing::warn!(policy, dropped, "policy wrote too many lines; some were dropped");
        }
        let text = one_line(text.trim_end(), MAX_LINE);
        match level {
            Level::ERROR => tracing::error!(policy, "{text}"),
            Level::WARN => tracing::warn!(policy, "{text}"),
            Level::INFO => tracing::info!(policy, "{text}"),
            _ => tracing::debug!(policy, "{text}"),
        }
    }

    /// How many lines were dropped before this one; `None` if this one is dropped too.
    fn admit(&self) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.since.elapsed() >= Duration::from_secs(1) {
            window.since = Instant::now();
            window.lines = 0;
        }
        if window.lines >= LINES_PER_SECOND {
            window.dropped += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.dropped))
    }
}

/// At most `limit` characters of `text`, with spaces for line breaks and other control characters: a
/// policy must not be able to write what looks like a line of the router's own.
pub(super) fn one_line(text: &str, limit: usize) -> String {
    text.chars().take(limit).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Standard output or error of a policy.
#[derive(Debug, Clone)]
pub(super) struct GuestOutput {
    log: GuestLog,
    level: Level,
    line: Vec<u8>,
}

impl GuestOutput {
    pub(super) fn new(log: GuestLog, level: Level) -> Self {
        Self { log, level, line: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.log.line(self.level, &String::from_utf8_lossy(&self.line));
                self.line.clear();
            }
        }
    }
}

impl IsTerminal for GuestOutput {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestOutput {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // Only asked for by WASI 0.3, which policies don't import.
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(Self::new(self.log.clone(), self.level))
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for GuestOutput {
    async fn ready(&mut self) {}
}

impl OutputStream for GuestOutput {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 * 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_instead_of_written() {
        let log = GuestLog::new("noisy");
        let admitted = (0..100).filter(|_| log.admit().is_some()).count();
        assert_eq!(admitted, 20);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(log.admit(), Some(80));
    }

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(one_line("a\nINFO ready\x1b[0m", 8), "a INFO r");
        assert_eq!(one_line("x\u{1b}y", 8), "x y");
    }

    #[tokio::test]
    async fn an_endless_line_is_cut() {
        let mut output = GuestOutput::new(GuestLog::new("noisy"), Level::INFO);
        (0..100).for_each(|_| output.take(&[b'x'; 1000]));
        assert_eq!(output.line.len(), MAX_LINE);
        output.take(b"\n");
        assert!(output.line.is_empty());
    }
}
