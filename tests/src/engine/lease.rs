//! Blocks kept for a peer, and until when (vLLM: `kv_lease_duration` of the NIXL connector; the other connectors have
//! timers of their own).

use std::collections::HashMap;

use tokio::time::Instant;

use super::blocks::BlockId;

/// For whom blocks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// A decode engine.
    Prefill,
    /// The prefill of the conversation's next turn.
    Readback,
}

/// One finished request whose blocks are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) deadline: Instant,
    pub(crate) kept: Kept,
    /// What the other leg is found by, where the engines match legs themselves.
    pub(crate) join: String,
}

/// All finished requests of one DP rank that nobody has read yet, by the engine's own id of each (with MoRIIO and
/// Mooncake: by the transfer's).
#[derive(Default)]
pub(crate) struct Leases {
    by_request: HashMap<String, Lease>,
}

impl Leases {
    pub(crate) fn len(&self) -> usize {
        self.by_request.len()
    }

    pub(crate) fn readbacks(&self) -> usize {
        self.by_request.values().filter(|lease| lease.kept == Kept::Readback).count()
    }

    /// All blocks; those of a shared prefix more than once.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.by_request.values().flat_map(|lease| lease.blocks.iter().copied())
    }

    /// Pins blocks; returns what was pinned under this id before, which nobody can find any more.
    pub(crate) fn pin(&mut self, request: String, lease: Lease) -> Option<Lease> {
        self.by_request.insert(request, lease)
    }

    pub(crate) fn get(&self, request: &str) -> Option<&Lease> {
        self.by_request.get(request)
    }

    /// The request that the other leg with this `join` is about.
    pub(crate) fn joined(&self, join: &str) -> Option<&str> {
        self.by_request.iter().find(|(_, lease)| lease.join == join).map(|(request, _)| request.as_str())
    }

    /// A heartbeat: the lease lasts at least until `deadline`. Unknown ids are ignored.
    pub(crate) fn extend(&mut self, request: &str, deadline: Instant) {
        if let Some(lease) = self.by_request.get_mut(request) {
            lease.deadline = lease.deadline.max(deadline);
        }
    }

    /// Ends a lease because the blocks were read; `None` if there is no such lease any more.
    pub(crate) fn complete(&mut self, request: &str) -> Option<Vec<BlockId>> {
        self.by_request.remove(request).map(|lease| lease.blocks)
    }

    /// Ends all leases whose time is over, and returns their blocks.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Vec<BlockId>> {
        self.by_request.extract_if(|_, lease| now >= lease.deadline).map(|(_, lease)| lease.blocks).collect()
    }

    /// When the next lease ends, if none is extended or completed.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.by_request.values().map(|lease| lease.deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_heartbeat_extends_and_never_shortens() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut leases = Leases::default();
        let lease =
            Lease { blocks: vec![1], deadline: now + 30 * second, kept: Kept::Prefill, join: "j".to_owned() };
        assert_eq!(leases.pin("r".to_owned(), lease), None);
        assert_eq!((leases.joined("j"), leases.joined("k")), (Some("r"), None));
        leases.extend("r", now + 20 * second);
        assert_eq!(leases.next_deadline(), Some(now + 30 * second));
        leases.extend("r", now + 40 * second);
        assert!(leases.expire(now + 39 * second).is_empty());
        assert_eq!(leases.expire(now + 40 * second), [[1]]);
        assert_eq!(leases.complete("r"), None);
    }
}
