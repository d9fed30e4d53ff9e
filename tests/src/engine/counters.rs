//! What an engine has counted since it started; `/metrics` shows the same figures under vLLM's names.

use serde::Serialize;

/// A snapshot of the counts of one engine, all DP ranks together. `restart()` starts again from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Sequences whose prompt was computed here, without a peer's KV cache.
    pub local_prefills: u64,
    /// KV caches fetched from a peer.
    pub remote_loads: u64,
    /// Fetches that failed, whatever the policy then did.
    pub failed_loads: u64,
    /// Finished prefills whose blocks were pinned for a handoff.
    pub pinned: u64,
    /// Handoffs that a decode engine has read or let go.
    pub completed: u64,
    /// Writes to a decode engine that failed: it was gone, or wanted more than was there.
    pub failed_writes: u64,
    /// Leases that ran out with the blocks unread.
    pub kv_expired: u64,
    /// Read notifications for handoffs that were no longer pinned: the reader may have read other data.
    pub notifications_after_expiry: u64,
    /// Heartbeats received for handoffs.
    pub heartbeats: u64,
    /// Prompt tokens computed here.
    pub prompt_tokens_computed: u64,
    /// Prompt tokens found in this engine's own prefix cache.
    pub prompt_tokens_cached: u64,
    /// Prompt tokens fetched from a peer.
    pub prompt_tokens_transferred: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Sequences ended by a stop condition.
    pub finished_stop: u64,
    /// Sequences ended by their token limit.
    pub finished_length: u64,
    /// Sequences ended by an error of the engine.
    pub finished_error: u64,
    /// Sequences given up before their end, because the client went.
    pub aborted: u64,
    /// Blocks wanted by running sequences when none was free.
    pub preemptions: u64,
    /// Requests refused with a 503 because the queue was full.
    pub admission_rejections: u64,
}

impl std::ops::Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            local_prefills: self.local_prefills + other.local_prefills,
            remote_loads: self.remote_loads + other.remote_loads,
            failed_loads: self.failed_loads + other.failed_loads,
            pinned: self.pinned + other.pinned,
            completed: self.completed + other.completed,
            failed_writes: self.failed_writes + other.failed_writes,
            kv_expired: self.kv_expired + other.kv_expired,
            notifications_after_expiry: self.notifications_after_expiry + other.notifications_after_expiry,
            heartbeats: self.heartbeats + other.heartbeats,
            prompt_tokens_computed: self.prompt_tokens_computed + other.prompt_tokens_computed,
            prompt_tokens_cached: self.prompt_tokens_cached + other.prompt_tokens_cached,
            prompt_tokens_transferred: self.prompt_tokens_transferred + other.prompt_tokens_transferred,
            generation_tokens: self.generation_tokens + other.generation_tokens,
            finished_stop: self.finished_stop + other.finished_stop,
            finished_length: self.finished_length + other.finished_length,
            finished_error: self.finished_error + other.finished_error,
            aborted: self.aborted + other.aborted,
            preemptions: self.preemptions + other.preemptions,
            admission_rejections: self.admission_rejections + other.admission_rejections,
        }
    }
}
