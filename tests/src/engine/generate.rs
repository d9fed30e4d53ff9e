//! Runs the sequences of one request, and reports each token as it comes.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::call::{Call, Endpoint};
use super::digest::{block_hashes, mix, random};
use super::fault::Outcome;
use super::handoff::{Handoff, Offer, Source, Unfinished};
use super::load::Prompt;
use super::rank::Rank;
use super::rejection::Rejection;
use super::sampling::Sampling;
use super::sequence::{End, Sequence};
use super::tokenizer::detokenize;

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
    pub(crate) offer: Option<Offer>,
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
    prompt: Prompt,
    sampling: Sampling,
    seed: u64,
    handoff: Handoff,
    outcomes: Vec<Outcome>,
}

impl Task {
    fn new(rank: Arc<Rank>, call: &Call, outcomes: &[Outcome], choice: usize) -> Self {
        let (index, copy) = (choice / call.n, choice % call.n);
        let child = if call.n > 1 { format!("{copy}_") } else { String::new() };
        let sub = if call.endpoint == Endpoint::Completions { format!("-{index}") } else { String::new() };
        let tokens: Arc<[u32]> = call.prompts.get(index).map(Vec::as_slice).unwrap_or_default().into();
        let prompt = Prompt {
            rank: Arc::clone(&rank),
            hashes: block_hashes(&tokens, rank.config.block_size, call.salt).into(),
            tokens,
            recompute: call.recompute,
            request_id: format!("{child}{}{sub}-{:08x}", call.id, random() as u32),
        };
        Self {
            rank,
            prompt,
            sampling: call.sampling.clone(),
            seed: mix(call.sampling.seed, copy as u64),
            handoff: call.handoff.clone(),
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
        let unfinished = Unfinished::new(&self.rank, &self.handoff.keep);
        let mut sequence = self.prompt.load(&self.handoff.source).await?;
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
                unfinished.finished();
                // Whoever has read the answer finds the blocks free.
                drop(sequence);
                let _ = events.send(event);
                return Ok(());
            }
            let _ = events.send(event);
        }
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
        let cached_tokens = match &self.handoff.source {
            Source::Fetch(order) => order.prefill_cached_tokens().unwrap_or(self.prompt.tokens.len()),
            _ => sequence.cached_tokens(),
        };
        let reason = reason.unwrap_or("length");
        let keep = Some(&self.handoff.keep).filter(|_| !self.says_nothing_pinned());
        Some(Finish {
            reason,
            stop_reason: stop.map_or(Value::Null, |stop| stop.reason),
            offer: keep.and_then(|keep| keep.offer(&self.rank, &self.prompt.request_id, reason, sequence)),
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
            Outcome::FinishWithStop {} if generated > self.sampling.min_tokens => Some("stop"),
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
