//! One sequence on an engine: its blocks, what they hold, and the tokens that follow from it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::blocks::BlockId;
use super::digest::{mix, mix_tokens};
use super::lease::{Kept, Lease};
use super::rank::{Grant, Rank};

/// A running sequence. Dropping it frees its blocks, at any point: that is what an abort is.
pub(crate) struct Sequence {
    rank: Arc<Rank>,
    prompt: Arc<[u32]>,
    hashes: Arc<[u64]>,
    blocks: Vec<BlockId>,
    cached: usize,
    /// How many leading prompt tokens the blocks hold, or are taken to hold.
    present: usize,
    generated: Vec<u32>,
    /// Folds the KV content of the prompt, the seed and the tokens so far: all that the next token depends on.
    state: u64,
    ended: bool,
    given_up: bool,
}

/// How a sequence ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Stop,
    Length,
    Error,
}

impl Sequence {
    pub(crate) fn new(rank: Arc<Rank>, prompt: Arc<[u32]>, hashes: Arc<[u64]>, grant: Grant) -> Self {
        let Grant { blocks, cached } = grant;
        let present = cached * rank.config.block_size;
        let generated = Vec::new();
        Self {
            rank,
            prompt,
            hashes,
            blocks,
            cached,
            present,
            generated,
            state: 0,
            ended: false,
            given_up: false,
        }
    }

    /// How many leading prompt tokens were in the engine's own prefix cache.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached * self.rank.config.block_size
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }

    pub(crate) fn generated(&self) -> usize {
        self.generated.len()
    }

    /// The blocks that the prefix cache did not have.
    pub(crate) fn wanted(&self) -> &[BlockId] {
        self.blocks.get(self.cached..).unwrap_or_default()
    }

    /// Whether all but the last prompt token is here.
    pub(crate) fn is_here(&self) -> bool {
        self.cached_tokens() + 1 >= self.prompt.len()
    }

    /// The hashes of the full blocks that the prefix cache did not have.
    pub(crate) fn missing_hashes(&self) -> &[u64] {
        self.hashes.get(self.cached..).unwrap_or_default()
    }

    /// The prompt's full blocks: hash and content.
    pub(crate) fn full_blocks(&self) -> Vec<(u64, Vec<u32>)> {
        let core = self.rank.core();
        let content = self.blocks.iter().map(|block| core.pool.read(*block).unwrap_or_default().to_vec());
        self.hashes.iter().copied().zip(content).collect()
    }

    /// Computes the prompt here, except what the prefix cache holds.
    pub(crate) async fn compute(&mut self) {
        self.fill().await;
        let mut core = self.rank.core();
        core.counters.local_prefills += 1;
        core.counters.prompt_tokens_cached += self.cached_tokens() as u64;
    }

    /// Computes what of the prompt is not present.
    async fn fill(&mut self) {
        let missing = self.prompt.len().saturating_sub(self.present);
        pause(self.rank.config.prefill_per_1k.mul_f64(missing as f64 / 1000.0)).await;
        let size = self.rank.config.block_size;
        let mut core = self.rank.core();
        for (index, (block, tokens)) in self.blocks.iter().zip(self.prompt.chunks(size)).enumerate() {
            let kept = self.present.saturating_sub(index * size).min(tokens.len());
            if kept < tokens.len() {
                let mut content = core.pool.read(*block).unwrap_or_default().to_vec();
                content.resize(kept, 0);
                content.extend_from_slice(&tokens[kept..]);
                core.pool.write(*block, &content);
            }
        }
        core.counters.prompt_tokens_computed += missing as u64;
        drop(core);
        self.present = self.prompt.len();
        self.remember();
    }

    /// Puts this into the blocks that the prefix cache did not have, in their order.
    pub(crate) fn take_over(&self, content: &[Vec<u32>]) {
        let mut core = self.rank.core();
        for (block, tokens) in self.wanted().iter().zip(content) {
            core.pool.write(*block, tokens);
        }
    }

    /// The whole prompt has come from elsewhere; only its last token is always computed here.
    pub(crate) fn loaded(&mut self) {
        self.count_load(self.prompt.len());
        self.compute_last_token();
        self.remember();
    }

    /// So many leading tokens are here now, and computes the rest of the prompt.
    pub(crate) async fn loaded_up_to(&mut self, tokens: usize) {
        if tokens >= self.prompt.len() {
            return self.loaded();
        }
        self.count_load(tokens);
        self.fill().await;
    }

    fn count_load(&mut self, present: usize) {
        self.present = present;
        let mut core = self.rank.core();
        core.counters.remote_loads += 1;
        core.counters.prompt_tokens_transferred += present.saturating_sub(self.cached_tokens()) as u64;
        core.counters.prompt_tokens_cached += self.cached_tokens() as u64;
    }

    fn compute_last_token(&self) {
        let (Some(token), Some(block)) = (self.prompt.last(), self.blocks.last()) else { return };
        let slot = (self.prompt.len() - 1) % self.rank.config.block_size;
        let mut core = self.rank.core();
        let mut tokens = core.pool.read(*block).unwrap_or_default().to_vec();
        tokens.resize(slot + 1, 0);
        tokens[slot] = *token;
        core.pool.write(*block, &tokens);
    }

    /// Full blocks go into the prefix cache under the prompt's hashes, whatever they hold.
    fn remember(&self) {
        let mut core = self.rank.core();
        for (block, hash) in self.blocks.iter().zip(self.hashes.iter()).skip(self.cached) {
            core.pool.remember(*block, *hash);
        }
    }

    /// To be called once the prompt's blocks are filled, before the first token.
    pub(crate) fn seed(&mut self, seed: u64) {
        let core = self.rank.core();
        let content = self.blocks.iter().flat_map(|block| core.pool.read(*block).unwrap_or_default());
        let content: Vec<u32> = content.copied().take(self.prompt.len()).collect();
        self.state = mix(mix_tokens(content.len() as u64, &content), seed);
    }

    /// A number that depends on the KV content and on all tokens before, and on nothing else.
    pub(crate) fn draw(&self) -> u64 {
        mix(self.state, 0)
    }

    /// Appends a generated token, in a further block if need be.
    pub(crate) async fn push(&mut self, token: u32, delay: Duration) {
        pause(delay).await;
        self.generated.push(token);
        self.state = mix(self.state, u64::from(token));
        let mut core = self.rank.core();
        core.counters.generation_tokens += 1;
        // The newest token's KV is computed with the next one.
        let computed = self.computed();
        let size = self.rank.config.block_size;
        if computed > self.blocks.len() * size {
            match core.pool.allocate(1) {
                Some(block) => self.blocks.extend(block),
                None => core.counters.preemptions += 1,
            }
        }
        let newest = computed.saturating_sub(1);
        let (slot, block) = (newest % size, self.blocks.get(newest / size));
        if let (Some(block), Some([before, _])) = (block, self.generated.last_chunk()) {
            let mut tokens = core.pool.read(*block).unwrap_or_default().to_vec();
            tokens.resize(slot + 1, 0);
            tokens[slot] = *before;
            core.pool.write(*block, &tokens);
        }
    }

    /// How many tokens' KV is in the blocks.
    pub(crate) fn computed(&self) -> usize {
        self.prompt.len() + self.generated.len().saturating_sub(1)
    }

    /// Counts the end; without it, dropping the sequence counts as an abort.
    pub(crate) fn end(&mut self, end: End) {
        let mut core = self.rank.core();
        match end {
            End::Stop => core.counters.finished_stop += 1,
            End::Length => core.counters.finished_length += 1,
            End::Error => core.counters.finished_error += 1,
        }
        self.ended = true;
    }

    /// Keeps the blocks under the name `request` for a peer, until the lease ends, and returns them.
    pub(crate) fn pin(&mut self, request: &str, join: String, kept: Kept, lease: Duration) -> Vec<BlockId> {
        let blocks = std::mem::take(&mut self.blocks);
        let lease = Lease { blocks: blocks.clone(), deadline: Instant::now() + lease, kept, join };
        let mut core = self.rank.core();
        core.counters.pinned += 1;
        if let Some(lost) = core.leases.pin(request.to_owned(), lease) {
            core.counters.kv_expired += 1;
            core.pool.recycle(&lost.blocks);
        }
        drop(core);
        self.rank.notify_waiting();
        blocks
    }

    /// The blocks are lost to the engine for good.
    pub(crate) fn leak(&mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        self.rank.core().leaked.extend(blocks);
    }

    /// All its blocks.
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// A load that was given up is over.
    pub(crate) fn reclaim(mut self) {
        self.rank.core().reclaim(&self.blocks);
        self.given_up = true;
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let mut core = self.rank.core();
        core.pool.release(&self.blocks);
        if !self.given_up {
            core.running -= 1;
            core.counters.aborted += u64::from(!self.ended);
        }
        drop(core);
        self.rank.notify_waiting();
    }
}

/// Sleeps, or only lets others run: the timer's granularity is a millisecond, so sleeping for nothing takes one.
async fn pause(delay: Duration) {
    if delay.is_zero() { tokio::task::yield_now().await } else { sleep(delay).await }
}
