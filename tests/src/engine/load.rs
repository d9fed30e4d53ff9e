//! Gets a prompt's KV cache into blocks of the engine, the way that its handoff says.

use std::future::pending;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::config::LoadFailurePolicy;
use super::connector::content;
use super::handoff::{Order, Source};
use super::rank::Rank;
use super::rejection::Rejection;
use super::sequence::{End, Sequence};
use super::transfer::{LoadFailed, Unread, notify, with_heartbeats};

/// A prompt that is to be generated from.
pub(crate) struct Prompt {
    pub(crate) rank: Arc<Rank>,
    pub(crate) tokens: Arc<[u32]>,
    pub(crate) hashes: Arc<[u64]>,
    /// Its log probabilities are wanted, so all of it must be computed here.
    pub(crate) recompute: bool,
    /// What this engine calls it.
    pub(crate) request_id: String,
}

/// A load that waits for a peer; counted for as long as it lives.
pub(crate) struct Hanging(Arc<Rank>);

impl Hanging {
    pub(crate) fn new(rank: &Arc<Rank>) -> Self {
        rank.core().hanging += 1;
        Self(Arc::clone(rank))
    }

    /// Waits for a write to arrive: for good, if who should tell of it is gone.
    pub(crate) async fn until(
        rank: &Arc<Rank>,
        arrived: oneshot::Receiver<Result<(), LoadFailed>>,
    ) -> Result<(), LoadFailed> {
        let _hanging = Self::new(rank);
        match arrived.await {
            Ok(result) => result,
            Err(_) => pending().await,
        }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.core().hanging -= 1;
    }
}

impl Prompt {
    /// Waits in line, and then for the KV cache.
    pub(crate) async fn load(&self, source: &Source) -> Result<Sequence, Rejection> {
        match source {
            Source::Here => {
                let mut sequence = self.admit().await;
                sequence.compute().await;
                Ok(sequence)
            }
            Source::Store(store) => {
                let mut sequence = self.admit().await;
                if self.recompute {
                    sequence.compute().await;
                } else {
                    content::load(store, &mut sequence).await;
                }
                Ok(sequence)
            }
            Source::Fetch(order) => self.fetch(order).await,
            Source::Die => self.die().await,
            Source::Park => {
                let mut sequence = self.admit().await;
                let _hanging = Hanging::new(&self.rank);
                sequence.leak();
                pending().await
            }
        }
    }

    async fn die<T>(&self) -> T {
        self.rank.die();
        pending().await
    }

    async fn fetch(&self, order: &Order) -> Result<Sequence, Rejection> {
        let mut sequence = match order.remote() {
            Some(remote) => {
                let unread = Unread::new(&self.rank, remote);
                let sequence = with_heartbeats(&self.rank, remote, self.admit()).await;
                unread.disarm();
                sequence
            }
            None => self.admit().await,
        };
        if let Order::Pull(remote) = order
            && sequence.wanted().len() > remote.blocks.len()
        {
            // The real worker asserts that prefill has no fewer blocks than this prompt needs.
            return self.die().await;
        }
        if self.recompute {
            if let Some(remote) = order.remote() {
                notify(&self.rank, remote).await;
            }
            sequence.compute().await;
            return Ok(sequence);
        }
        let (mut sequence, loaded) = self.carry_out(order.clone(), sequence).await?;
        if loaded.is_ok() {
            return Ok(sequence);
        }
        self.rank.core().counters.failed_loads += 1;
        match self.rank.config.load_failure {
            LoadFailurePolicy::Recompute => {
                sequence.compute().await;
                Ok(sequence)
            }
            LoadFailurePolicy::Fail => {
                sequence.end(End::Error);
                Err(Rejection::internal())
            }
        }
    }

    /// In a task of its own: a load that has begun goes on, and holds the blocks, though the client be gone.
    async fn carry_out(
        &self,
        order: Order,
        mut sequence: Sequence,
    ) -> Result<(Sequence, Result<(), LoadFailed>), Rejection> {
        let (rank, request_id) = (Arc::clone(&self.rank), self.request_id.clone());
        let (mut wanted, loaded) = oneshot::channel();
        self.rank.spawn(async move {
            let blocks = sequence.blocks().to_vec();
            let given_up = {
                let load = order.load(&rank, &request_id, &mut sequence);
                tokio::pin!(load);
                tokio::select! {
                    () = beats(&rank, &order) => unreachable!("heartbeats never end"),
                    result = &mut load => Ok(result),
                    () = wanted.closed() => {
                        rank.core().abandon(&blocks);
                        drop(load.await);
                        Err(())
                    }
                }
            };
            match given_up {
                Ok(result) => drop(wanted.send((sequence, result))),
                Err(()) => sequence.reclaim(),
            }
        });
        loaded.await.map_err(|_| Rejection::internal())
    }

    async fn admit(&self) -> Sequence {
        let size = self.rank.config.block_size;
        // The last prompt token is never taken from a cache.
        let reusable = if self.recompute { 0 } else { self.tokens.len().saturating_sub(1) / size };
        let hashes = self.hashes.get(..reusable).unwrap_or_default();
        let grant = self.rank.admit(hashes, self.tokens.len().div_ceil(size)).await;
        Sequence::new(Arc::clone(&self.rank), Arc::clone(&self.tokens), Arc::clone(&self.hashes), grant)
    }
}

/// Keeps the remote's lease alive, if there is one, for as long as the request wants it.
async fn beats(rank: &Rank, order: &Order) {
    match order.remote() {
        Some(remote) => with_heartbeats(rank, remote, pending()).await,
        None => pending().await,
    }
}
