//! Logging: where it goes, how it looks, and lines that are written only now and then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging to standard error. `filter` is as in `info,edge_router::policy=debug`.
///
/// # Errors
/// A sentence that says what is wrong with the filter.
pub fn init(filter: &str, format: LogFormat, access_log: bool) -> Result<(), String> {
    let access = if access_log { "access=info" } else { "access=off" };
    let filter =
        EnvFilter::try_new(format!("{filter},{access}")).map_err(|e| format!("log: '{filter}': {e}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
            builder.with_ansi(ansi).with_target(false).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|e| format!("log: {e}"))
}

/// Lets something happen at most once in a period.
#[derive(Debug)]
pub struct Sometimes {
    period: Duration,
    /// Milliseconds of the wall clock; a clock set back costs a few lines at most.
    last: AtomicU64,
}

impl Sometimes {
    /// At most once in `period`.
    pub const fn every(period: Duration) -> Self {
        Self { period, last: AtomicU64::new(0) }
    }

    /// Whether it is time.
    pub fn now(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.at(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }

    fn at(&self, now: u64) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let period = u64::try_from(self.period.as_millis()).unwrap_or(u64::MAX);
        now.abs_diff(last) >= period
            && self.last.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_in_a_period() {
        let sometimes = Sometimes::every(Duration::from_secs(10));
        let happened: Vec<_> = [20_000, 20_001, 29_999, 30_000, 30_001].map(|t| sometimes.at(t)).into();
        assert_eq!(happened, [true, false, false, true, false]);
    }
}
