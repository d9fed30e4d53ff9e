//! Runs the sequences of one request, and reports each token as it comes.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::call::{Call, Endpoint};
use super::config::LoadFailurePolicy;
use super::digest::{block_hashes, mix, random};
use super::fault::Outcome;
use super::handoff::{Handoff, KvParams, Remote};
use super::rank::Rank;
use super::rejection::Rejection;
use super::sampling::Sampling;
use super::sequence::{End, Sequence};
use super::tokenizer::detokenize;
use super::transfer::{Unread, notify, with_heartbeats};

/// What happens to a choice of the answer.
#[derive(Debug)]
pub(crate) enum Event {
    Token { id: u32, text: String, finish: Option<Finish> },
    Failed(Rejection),
}

/// The end of a choice.
#[derive(Clone, Debug)]
pub(crate) struct Finish {
    pub(crate) reason: &'static str,
    pub(crate) stop_reason: Value,
    pub(crate) kv_transfer_params: Option<KvParams>,
    pub(crate) cached_tokens: usize,
}

/// The running sequences of a request. Dropping it aborts them.
pub(crate) struct Generation {
    events: mpsc::UnboundedReceiver<(usize, Event)>,
    _sequences: JoinSet<()>,
}

impl Generation {
    /// Starts one sequence per prompt and copy; choice `p * n + k` is copy `k` of prompt `p`.
    pub(crate) fn start(rank: &Arc<Rank>, call: &Call, outcomes: &[Outcome]) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let mut sequences = JoinSet::new();
        for choice in 0..call.prompts.len() * call.n {
            let task = Task::new(Arc::clone(rank), call, outcomes, choice);
            let sender = sender.clone();
            sequences.spawn(async move { task.run(choice, &sender).await });
        }
        Self { events, _sequences: sequences }
    }

    /// The next event of any choice; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Option<(usize, Event)> {
        self.events.recv().await
    }
}

struct Task {
    rank: Arc<Rank>,
    prompt: Arc<[u32]>,
    hashes: Arc<[u64]>,
    sampling: Sampling,
    seed: u64,
    /// A prompt's log probabilities need the whole prompt computed here.
    recompute: bool,
    handoff: Handoff,
    request_id: String,
    outcomes: Vec<Outcome>,
}

impl Task {
    fn new(rank: Arc<Rank>, call: &Call, outcomes: &[Outcome], choice: usize) -> Self {
        let (index, copy) = (choice / call.n, choice % call.n);
        let child = if call.n > 1 { format!("{copy}_") } else { String::new() };
        let sub = if call.endpoint == Endpoint::Completions { format!("-{index}") } else { String::new() };
        let prompt: Arc<[u32]> = call.prompts.get(index).map(Vec::as_slice).unwrap_or_default().into();
        let handoff = if rank.config.connector { call.handoff.clone() } else { Handoff::None };
        Self {
            hashes: block_hashes(&prompt, rank.config.block_size, call.salt).into(),
            rank,
            prompt,
            sampling: call.sampling.clone(),
            seed: mix(call.sampling.seed, copy as u64),
            recompute: call.recompute,
            handoff,
            request_id: format!("{child}{}{sub}-{:08x}", call.id, random() as u32),
            outcomes: outcomes.to_vec(),
        }
    }

    async fn run(self, choice: usize, events: &mpsc::UnboundedSender<(usize, Event)>) {
        let result = tokio::select! {
            () = self.rank.dead() => Err(Rejection::engine_dead()),
            result = self.generate(choice, events) => result,
        };
        if let Err(rejection) = result {
            let _ = events.send((choice, Event::Failed(rejection)));
        }
    }

    async fn generate(
        &self,
        choice: usize,
        events: &mpsc::UnboundedSender<(usize, Event)>,
    ) -> Result<(), Rejection> {
        let mut sequence = self.prefill().await?;
        sequence.seed(self.seed);
        let mut text = String::new();
        let mut generated = 0;
        loop {
            if self.fails_after(generated) {
                sequence.end(End::Error);
                return Err(Rejection::internal());
            }
            let id = self.sampling.token(sequence.draw(), generated);
            sequence.push(id, self.rank.config.token_delay).await;
            generated += 1;
            let before = text.len();
            text.push_str(&detokenize(&[id]));
            let finish = self.finish(&mut sequence, id, generated, &mut text);
            let finished = finish.is_some();
            let piece = text.get(before.min(text.len())..).unwrap_or_default().to_owned();
            let event = (choice, Event::Token { id, text: piece, finish });
            if finished {
                // Whoever has read the answer finds the blocks free.
                drop(sequence);
                let _ = events.send(event);
                return Ok(());
            }
            let _ = events.send(event);
        }
    }

    /// Gets the prompt's KV cache into blocks of this engine, the way that the handoff says.
    async fn prefill(&self) -> Result<Sequence, Rejection> {
        match &self.handoff {
            Handoff::Fetch(remote) => self.fetch(remote).await,
            Handoff::Die => {
                self.rank.die();
                std::future::pending().await
            }
            Handoff::Park => {
                self.admit().await.leak();
                std::future::pending().await
            }
            Handoff::None | Handoff::Offer => {
                let mut sequence = self.admit().await;
                sequence.compute().await;
                Ok(sequence)
            }
        }
    }

    async fn fetch(&self, remote: &Remote) -> Result<Sequence, Rejection> {
        let unread = Unread::new(&self.rank, remote);
        let mut sequence = with_heartbeats(&self.rank, remote, self.admit()).await;
        unread.disarm();
        if sequence.needs_more_than(remote) {
            self.rank.die();
            return std::future::pending().await;
        }
        if self.recompute {
            notify(&self.rank, remote).await;
            sequence.compute().await;
            return Ok(sequence);
        }
        // In a task of its own: a read that has begun goes on, and holds the blocks, though the client be gone.
        let (rank, remote) = (Arc::clone(&self.rank), remote.clone());
        let load = tokio::spawn(async move {
            let loaded = with_heartbeats(&rank, &remote, sequence.load(&remote)).await;
            (sequence, loaded)
        });
        let (mut sequence, loaded) = load.await.map_err(|_| Rejection::internal())?;
        match (loaded, self.rank.config.load_failure) {
            (Ok(()), _) => {}
            (Err(_), LoadFailurePolicy::Recompute) => sequence.compute().await,
            (Err(_), LoadFailurePolicy::Fail) => {
                sequence.end(End::Error);
                return Err(Rejection::internal());
            }
        }
        Ok(sequence)
    }

    async fn admit(&self) -> Sequence {
        let size = self.rank.config.block_size;
        // The last prompt token is never taken from a cache.
        let reusable = if self.recompute { 0 } else { self.prompt.len().saturating_sub(1) / size };
        let hashes = self.hashes.get(..reusable).unwrap_or_default();
        let grant = self.rank.admit(hashes, self.prompt.len().div_ceil(size)).await;
        Sequence::new(Arc::clone(&self.rank), Arc::clone(&self.prompt), Arc::clone(&self.hashes), grant)
    }

    /// Ends the sequence if `id` was its last token.
    fn finish(
        &self,
        sequence: &mut Sequence,
        id: u32,
        generated: usize,
        text: &mut String,
    ) -> Option<Finish> {
        let stop = self.sampling.stop(id, generated, text);
        let reason = self.told_to_end(generated).or(stop.is_some().then_some("stop"));
        if reason.is_none() && generated < self.sampling.max_tokens {
            return None;
        }
        if let Some(len) = stop.as_ref().and_then(|stop| stop.text_len) {
            text.truncate(len);
        }
        sequence.end(if reason == Some("stop") { End::Stop } else { End::Length });
        let cached_tokens = match &self.handoff {
            Handoff::Fetch(remote) => remote.prefill_cached_tokens.unwrap_or(self.prompt.len()),
            _ => sequence.cached_tokens(),
        };
        let pins = matches!(self.handoff, Handoff::Offer) && !self.says_nothing_pinned();
        Some(Finish {
            reason: reason.unwrap_or("length"),
            stop_reason: stop.map_or(Value::Null, |stop| stop.reason),
            kv_transfer_params: pins.then(|| sequence.pin(self.request_id.clone())),
            cached_tokens,
        })
    }

    fn fails_after(&self, generated: usize) -> bool {
        let fails =
            |outcome: &Outcome| matches!(outcome, Outcome::ErrorAfter { tokens } if *tokens <= generated);
        self.outcomes.iter().any(fails)
    }

    /// The reason of a fault that ends the sequence here.
    fn told_to_end(&self, generated: usize) -> Option<&'static str> {
        self.outcomes.iter().find_map(|outcome| match outcome {
            Outcome::FinishWithStop {} => Some("stop"),
            Outcome::AbortAfter { tokens } if *tokens <= generated => Some("abort"),
            _ => None,
        })
    }

    fn says_nothing_pinned(&self) -> bool {
        self.outcomes.iter().any(|outcome| match outcome {
            Outcome::KvParams { value } => value.as_object().is_none_or(serde_json::Map::is_empty),
            _ => false,
        })
    }
}
