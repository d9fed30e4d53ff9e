//! One sequence on an engine: its blocks, what they hold, and the tokens that follow from it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::blocks::BlockId;
use super::digest::{mix, mix_tokens};
use super::handoff::{KvParams, Remote};
use super::rank::{Grant, Rank};
use super::transfer::{LoadFailed, fetch, notify};

/// A running sequence. Dropping it frees its blocks, at any point: that is what an abort is.
pub(crate) struct Sequence {
    rank: Arc<Rank>,
    prompt: Arc<[u32]>,
    hashes: Arc<[u64]>,
    blocks: Vec<BlockId>,
    cached: usize,
    generated: Vec<u32>,
    /// Folds the KV content of the prompt, the seed and the tokens so far: all that the next token depends on.
    state: u64,
    ended: bool,
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
        Self { rank, prompt, hashes, blocks, cached, generated: Vec::new(), state: 0, ended: false }
    }

    /// How many leading prompt tokens were in the engine's own prefix cache.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached * self.rank.config.block_size
    }

    /// Computes the prompt here, except what the prefix cache holds.
    pub(crate) async fn compute(&mut self) {
        let missing = self.prompt.len() - self.cached_tokens();
        pause(self.rank.config.prefill_per_1k.mul_f64(missing as f64 / 1000.0)).await;
        let size = self.rank.config.block_size;
        let mut core = self.rank.core();
        for (block, tokens) in self.blocks.iter().zip(self.prompt.chunks(size)).skip(self.cached) {
            core.pool.write(*block, tokens);
        }
        core.counters.local_prefills += 1;
        core.counters.prompt_tokens_computed += missing as u64;
        core.counters.prompt_tokens_cached += self.cached_tokens() as u64;
        drop(core);
        self.remember();
    }

    /// Whether prefill has fewer blocks than this prompt needs, which the real worker asserts against.
    pub(crate) fn needs_more_than(&self, remote: &Remote) -> bool {
        self.blocks.len() - self.cached > remote.blocks.len()
    }

    /// Copies the part of the prompt that is not here from a peer's blocks, then frees the peer. What the blocks
    /// hold is taken as it is; only the last prompt token is always computed here.
    pub(crate) async fn load(&mut self, remote: &Remote) -> Result<(), LoadFailed> {
        let wanted = self.blocks.get(self.cached..).unwrap_or_default();
        let content = if self.cached_tokens() + 1 >= self.prompt.len() {
            Vec::new()
        } else {
            // A shorter prompt takes the end of the peer's list, as a prompt with a local prefix does.
            let from = remote.blocks.len().saturating_sub(wanted.len());
            fetch(&self.rank, remote, remote.blocks.get(from..).unwrap_or_default())
                .await
                .inspect_err(|LoadFailed| self.rank.core().counters.failed_loads += 1)?
        };
        self.take_over(&content);
        self.compute_last_token();
        self.remember();
        notify(&self.rank, remote).await;
        Ok(())
    }

    fn take_over(&self, content: &[Vec<u32>]) {
        let mut core = self.rank.core();
        for (block, tokens) in self.blocks.iter().skip(self.cached).zip(content) {
            core.pool.write(*block, tokens);
        }
        core.counters.remote_loads += 1;
        core.counters.prompt_tokens_transferred += (self.prompt.len() - self.cached_tokens()) as u64;
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
        if computed > self.blocks.len() * self.rank.config.block_size {
            match core.pool.allocate(1) {
                Some(block) => self.blocks.extend(block),
                None => core.counters.preemptions += 1,
            }
        }
    }

    fn computed(&self) -> usize {
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

    /// Leaves the blocks to whoever comes with these params, until the lease ends.
    pub(crate) fn pin(&mut self, request_id: String) -> KvParams {
        let config = &self.rank.config;
        let blocks = std::mem::take(&mut self.blocks);
        let mut core = self.rank.core();
        core.counters.pinned += 1;
        core.leases.pin(request_id.clone(), blocks.clone(), tokio::time::Instant::now() + config.lease());
        KvParams {
            do_remote_prefill: true,
            do_remote_decode: false,
            remote_block_ids: [blocks],
            remote_engine_id: self.rank.engine_id.clone(),
            remote_request_id: request_id,
            remote_host: self.rank.config.listen.ip().to_string(),
            remote_port: self.rank.side_port,
            tp_size: 1,
            dcp_size: 1,
            pp_size: 1,
            remote_num_tokens: self.computed(),
            remote_blocks_expiry_time: None,
            transfer_mode: "pull",
            remote_prefill_cached_tokens: (self.generated.len() <= 1).then(|| self.cached_tokens()),
        }
    }

    /// The blocks are lost to the engine for good.
    pub(crate) fn leak(&mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        self.rank.core().leaked += blocks.len();
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let mut core = self.rank.core();
        core.running -= 1;
        core.pool.release(&self.blocks);
        if !self.ended {
            core.counters.aborted += 1;
        }
        drop(core);
        self.rank.notify_waiting();
    }
}

/// Sleeps, or only lets others run: the timer's granularity is a millisecond, so sleeping for nothing takes one.
async fn pause(delay: Duration) {
    if delay.is_zero() { tokio::task::yield_now().await } else { sleep(delay).await }
}
