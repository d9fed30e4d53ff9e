//! Waiting for a condition, with a bound that only a hang can reach.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use crate::client::PATIENCE;

/// Looks again and again until `holds`.
///
/// # Errors
/// If it does not hold within [`PATIENCE`]; the error says `what`.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() > deadline {
            bail!("not within {} s: {what}", PATIENCE.as_secs());
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
