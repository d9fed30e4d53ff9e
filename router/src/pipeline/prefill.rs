//! The prefill leg: computes the prompt's KV cache on one instance and brings back its handle.

use std::sync::Arc;

use edge_router_policy::connectors::KV_TRANSFER_PARAMS;
use edge_router_policy::{Handoff, Phase, Role};
use http::StatusCode;
use serde::Deserialize;
use tokio::time::Instant;

use super::answer::Answer;
use super::attempt::{Attempt, Retries};
use super::decode::{self, Decoded};
use super::exchange::exchange;
use super::readback::{self, Reading};
use super::schedule::{Scheduled, can_schedule, schedule};
use super::together::{self, Ran};
use crate::app::App;
use crate::body::scan::Object;
use crate::config::WithoutPrefill;
use crate::error::Error;
use crate::fleet::Instance;
use crate::handoff::{self, Destination, Handle, Keeps};
use crate::metrics::Fallback;
use crate::upstream::LegRequest;

/// How the prefill leg ended.
pub(super) enum Prefilled {
    /// Decode can fetch the KV cache, if there is anything to hand over.
    Handle(Handle),
    /// Decode computes the prompt itself.
    Skipped,
    /// The engine refused the request; the client gets its answer.
    Refused(Answer),
    /// The decode leg ran together with it.
    Decoded(Decoded),
}

/// Runs the leg, on other instances if one fails.
pub(super) async fn run(attempt: &mut Attempt<'_>, retries: &mut Retries) -> Result<Prefilled, Error> {
    if !has_pair(attempt) {
        return Ok(Prefilled::Skipped);
    }
    // A KV cache that nobody can fetch would only be in the way.
    can_schedule(attempt, Phase::Decode, &retries.tried)?;
    loop {
        let chosen = match attempt.prefill_ahead.take() {
            Some(chosen_before) => Ok(chosen_before),
            None => schedule(attempt, Phase::Prefill, &retries.tried),
        };
        let scheduled = match chosen {
            Ok(scheduled) => scheduled,
            Err(error) => return without(attempt, Fallback::NoPrefill, error),
        };
        attempt.pair.prefill = Some(scheduled.chosen.placement());
        if attempt.app.chain.handoff() != Handoff::Serial && attempt.decode_ahead.is_none() {
            let decode = decode::choose(attempt, retries)?;
            attempt.paired = true;
            attempt.pair.decode = Some(decode.chosen.placement());
            attempt.decode_ahead = Some(decode);
        }
        let Some(leg) = PrefillLeg::prepare(attempt, scheduled).await else {
            attempt.go_without_prefill();
            return Ok(Prefilled::Skipped);
        };
        let leg = match together::run(attempt, leg, retries).await? {
            Ran::Together(end) => return Ok(end),
            Ran::OneAfterTheOther(leg) => leg,
        };
        let sent = leg.sent();
        let end = leg.send(attempt.app).await;
        match settle(attempt, retries, &sent, end) {
            Ok(end) => return Ok(end),
            Err(error) if !retries.take(attempt.app, Phase::Prefill) => {
                return without(attempt, Fallback::PrefillFailed, error);
            }
            // The one that failed may have fetched the encodings, and nobody can fetch them again.
            Err(_) if attempt.hands_encodings() => return Ok(Prefilled::Decoded(Decoded::TryAgain)),
            Err(_) => {}
        }
    }
}

/// Whether there are two different instances to run the two legs on. A fleet of engines that only do
/// both is no disaggregated one, nor is one that has split off nothing but its encoders.
pub(super) fn has_pair(attempt: &Attempt<'_>) -> bool {
    let snapshot = attempt.app.fleet.snapshot();
    let split = snapshot.instances.iter().any(|i| matches!(i.spec().role, Role::Prefill | Role::Decode));
    if !split && snapshot.serving(Phase::Encode).next().is_some() {
        return false;
    }
    let mut prefill = snapshot.serving(Phase::Prefill);
    prefill.any(|p| snapshot.serving(Phase::Decode).any(|d| d.id() != p.id()))
}

/// A leg that is ready to be sent.
pub(super) struct PrefillLeg {
    request: LegRequest,
    scheduled: Scheduled,
    keeps: Keeps,
    reading: Option<Reading>,
}

/// What is to be remembered of a leg that was sent.
pub(super) struct Sent {
    instance: Arc<Instance>,
    pub(super) at: Instant,
    keeps: Keeps,
    reads_back: bool,
}

impl PrefillLeg {
    /// The leg as the policies want it. `None` if the engine could die of it.
    async fn prepare(attempt: &mut Attempt<'_>, scheduled: Scheduled) -> Option<Self> {
        let app = attempt.app;
        attempt.account.prefill_at(&scheduled);
        let offered = readback::offer(attempt, &scheduled).await;
        let decided = app.chain.rewrite_prefill(&attempt.facts, attempt.pair, &app.fleet.snapshot());
        let leg = decided.value;
        let reading = readback::reading(attempt, &leg, offered);
        let to = Destination::new(scheduled.chosen.instance.spec(), leg.request_id());
        let check = |_, params| handoff::check_prefill(params, &to, reading.is_some());
        let keeps = match leg.params().try_fold(Keeps::Nothing, check) {
            Ok(keeps) => keeps,
            Err(danger) => {
                attempt.account.unsafe_handle(&decided.by, &danger);
                return None;
            }
        };
        attempt.asked_to_keep = keeps != Keeps::Nothing;
        let mut request = attempt.leg_request(&leg, &scheduled);
        // Reading a KV cache frees it.
        request.repeatable &= reading.is_none();
        Some(Self { request, scheduled, keeps, reading })
    }

    pub(super) fn sent(&self) -> Sent {
        let instance = Arc::clone(&self.scheduled.chosen.instance);
        let (keeps, reads_back) = (self.keeps, self.reading.is_some());
        Sent { instance, at: Instant::now(), keeps, reads_back }
    }

    /// Sends the leg to the instance and reads its answer.
    pub(super) async fn send(mut self, app: &App) -> Result<LegEnd, Error> {
        let (asked, is_to_blame) = ((Phase::Prefill, app.config.timeouts.prefill), self.reading.is_none());
        let failed = |status: StatusCode| status.is_server_error();
        let (head, body) = exchange(&mut self.scheduled, &self.request, asked, failed, is_to_blame).await?;
        if !head.status.is_success() {
            return Ok(LegEnd::Refused(Answer::whole(head, body)));
        }
        if let Some(reading) = self.reading.take() {
            reading.done();
        }
        let cut = |e| Error::Cut { phase: Phase::Prefill, source: Box::new(e) };
        Object::scan(body).map(LegEnd::Answered).map_err(cut)
    }
}

/// How the engine has answered.
pub(super) enum LegEnd {
    Answered(Object),
    Refused(Answer),
}

/// Takes note of how a leg ended.
///
/// # Errors
/// If the instance has failed the request; another may be tried.
pub(super) fn settle(
    attempt: &mut Attempt<'_>,
    retries: &mut Retries,
    sent: &Sent,
    end: Result<LegEnd, Error>,
) -> Result<Prefilled, Error> {
    let took = sent.at.elapsed();
    attempt.account.prefill_done(took);
    let error = match end {
        Ok(LegEnd::Answered(answer)) => {
            attempt.app.metrics.request.prefilled(took);
            return Ok(handle(attempt, answer, sent));
        }
        Ok(LegEnd::Refused(answer)) => return Ok(Prefilled::Refused(answer)),
        Err(error) => error,
    };
    // What could not be read back is not tried again, and was no fault of the instance.
    if !(sent.reads_back && matches!(error, Error::Refused { .. })) {
        retries.failed(sent.instance.id());
    }
    attempt.account.leg_failed(&error);
    Err(error)
}

/// What prefill hands over. Without KV transfer params there may still be something to fetch, for
/// connectors that find it by the prompt; the policy knows.
fn handle(attempt: &Attempt<'_>, answer: Object, sent: &Sent) -> Prefilled {
    let params = answer.get(KV_TRANSFER_PARAMS).filter(|p| !["null", "{}"].contains(p)).map(str::to_owned);
    // Such an engine keeps nothing of a text that came to its end at once (engine contract §0.4).
    let kept_by_name = sent.keeps == Keeps::ByName && ended_by_length(&answer);
    attempt.facts.set_prefill_answer(answer);
    if params.is_none() && !kept_by_name {
        return Prefilled::Skipped;
    }
    let lease = attempt.app.config.lease.labelled(&sent.instance.spec().labels);
    Prefilled::Handle(Handle::new(params.map(Into::into), lease, attempt.app.releaser.clone()))
}

fn ended_by_length(answer: &Object) -> bool {
    #[derive(Deserialize)]
    struct Choice {
        finish_reason: Option<String>,
    }
    let choices = answer.get("choices").and_then(|text| serde_json::from_str::<Vec<Choice>>(text).ok());
    let first = choices.and_then(|choices| choices.into_iter().next());
    first.and_then(|choice| choice.finish_reason).is_some_and(|reason| reason == "length")
}

/// Goes on without a prefill leg, or gives up.
pub(super) fn without(
    attempt: &mut Attempt<'_>,
    fallback: Fallback,
    error: Error,
) -> Result<Prefilled, Error> {
    if attempt.app.config.without_prefill == WithoutPrefill::Reject {
        return Err(error);
    }
    attempt.account.fell_back(fallback, Some(&error));
    if fallback == Fallback::PrefillFailed {
        attempt.encodings_are_spent();
    }
    attempt.go_without_prefill();
    Ok(Prefilled::Skipped)
}
