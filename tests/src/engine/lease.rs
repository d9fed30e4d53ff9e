//! Blocks pinned for a handoff, and until when (vLLM: `kv_lease_duration` of the NIXL connector).

use std::collections::HashMap;

use tokio::time::Instant;

use super::blocks::BlockId;

struct Lease {
    blocks: Vec<BlockId>,
    deadline: Instant,
}

/// All handoffs of one DP rank that nobody has read yet.
#[derive(Default)]
pub(crate) struct Leases {
    by_request: HashMap<String, Lease>,
}

impl Leases {
    pub(crate) fn len(&self) -> usize {
        self.by_request.len()
    }

    /// Pins `blocks` under the engine's own id of the request.
    pub(crate) fn pin(&mut self, request: String, blocks: Vec<BlockId>, deadline: Instant) {
        self.by_request.insert(request, Lease { blocks, deadline });
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
        leases.pin("r".to_owned(), vec![1], now + 30 * second);
        leases.extend("r", now + 20 * second);
        assert_eq!(leases.next_deadline(), Some(now + 30 * second));
        leases.extend("r", now + 40 * second);
        assert!(leases.expire(now + 39 * second).is_empty());
        assert_eq!(leases.expire(now + 40 * second), [[1]]);
        assert_eq!(leases.complete("r"), None);
    }
}
