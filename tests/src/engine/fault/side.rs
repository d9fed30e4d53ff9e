//! Faults of the side channel between engines; they are set on the engine that is read from.

use std::time::Duration;

use serde::Deserialize;

use super::{Fault, Kind};

/// What a peer notices.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// Blocks are handed over late.
    SlowRead { ms: u64 },
    /// The word that blocks were read never arrives.
    LostNotification {},
}

impl Fault {
    /// Blocks are handed over `delay` later.
    pub fn slow_read(delay: Duration) -> Self {
        Self::new(Kind::Side(Side::SlowRead { ms: delay.as_millis() as u64 }))
    }

    /// The notification that blocks were read is lost, so that they stay pinned until the lease ends.
    pub fn lost_notification() -> Self {
        Self::new(Kind::Side(Side::LostNotification {}))
    }
}
