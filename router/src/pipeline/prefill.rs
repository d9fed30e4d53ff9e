//! The prefill leg: computes the prompt's KV cache on one instance and brings back its handle.

use edge_router_policy::connectors::KV_TRANSFER_PARAMS;
use edge_router_policy::{Handoff, Phase};
use http::StatusCode;
use tokio::time::Instant;

use super::answer::{self, Answer};
use super::attempt::{Attempt, Retries};
use super::decode;
use super::schedule::{Scheduled, can_schedule, schedule};
use crate::body::scan::Object;
use crate::config::WithoutPrefill;
use crate::error::{Error, Unavailable};
use crate::handoff::Handle;
use crate::metrics::Fallback;

/// How the prefill leg ended.
pub(super) enum Prefilled {
    /// Decode can fetch the KV cache, if there is anything to hand over.
    Handle(Handle),
    /// Decode computes the prompt itself.
    Skipped,
    /// The engine refused the request; the client gets its answer.
    Refused(Answer),
}

/// Runs the leg, on other instances if one fails.
pub(super) async fn run(attempt: &mut Attempt<'_>, retries: &mut Retries) -> Result<Prefilled, Error> {
    if !has_pair(attempt) {
        return Ok(Prefilled::Skipped);
    }
    // A KV cache that nobody can fetch would only be in the way.
    can_schedule(attempt, Phase::Decode, &retries.tried)?;
    loop {
        let scheduled = match schedule(attempt, Phase::Prefill, &retries.tried) {
            Ok(scheduled) => scheduled,
            Err(error) => return without(attempt, Fallback::NoPrefill, error),
        };
        attempt.pair.prefill = Some(scheduled.chosen.placement());
        if attempt.app.chain.handoff() == Handoff::SerialPaired && attempt.decode_ahead.is_none() {
            let decode = decode::choose(attempt, retries)?;
            attempt.paired = true;
            attempt.pair.decode = Some(decode.chosen.placement());
            attempt.decode_ahead = Some(decode);
        }
        let (id, started) = (scheduled.chosen.instance.id(), Instant::now());
        let end = leg(attempt, scheduled).await;
        attempt.account.prefill_done(started.elapsed());
        let error = match end {
            Ok(LegEnd::Answered(answer)) => {
                attempt.app.metrics.request.prefilled(started.elapsed());
                return Ok(handle(attempt, answer));
            }
            Ok(LegEnd::Refused(answer)) => return Ok(Prefilled::Refused(answer)),
            Ok(LegEnd::Overloaded) => {
                Error::NoInstance { phase: Phase::Prefill, why: Unavailable::Saturated }
            }
            Err(error) => error,
        };
        retries.failed(id);
        attempt.account.leg_failed(&error);
        if !retries.take(attempt.app, Phase::Prefill) {
            return without(attempt, Fallback::PrefillFailed, error);
        }
    }
}

/// Whether there are two different instances to run the two legs on. A fleet of engines that only do
/// both is no disaggregated one.
fn has_pair(attempt: &Attempt<'_>) -> bool {
    let snapshot = attempt.app.fleet.snapshot();
    let mut prefill = snapshot.serving(Phase::Prefill);
    prefill.any(|p| snapshot.serving(Phase::Decode).any(|d| d.id() != p.id()))
}

enum LegEnd {
    Answered(Object),
    Refused(Answer),
    /// 503: the engine is well, but takes nothing more at the moment.
    Overloaded,
}

/// Sends the leg to the instance and reads its answer.
async fn leg(attempt: &mut Attempt<'_>, mut scheduled: Scheduled) -> Result<LegEnd, Error> {
    let app = attempt.app;
    attempt.account.prefill_at(&scheduled);
    let leg = app.chain.rewrite_prefill(&attempt.facts, attempt.pair, &app.fleet.snapshot()).value;
    let request = attempt.leg_request(&leg, &scheduled);
    let instance = scheduled.chosen.instance.clone();
    let (limit, started) = (app.config.timeouts.prefill, Instant::now());
    let response = instance.pool().send(&request, limit).await.map_err(|source| {
        instance.health().request_failed();
        Error::Leg { phase: Phase::Prefill, source }
    })?;
    let status = response.status();
    scheduled.in_flight.answered();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return Ok(LegEnd::Overloaded);
    }
    if status.is_server_error() {
        instance.health().request_failed();
        return Err(Error::Refused { phase: Phase::Prefill, status });
    }
    let (head, body) = response.into_parts();
    let body = answer::whole(body, Phase::Prefill, limit.saturating_sub(started.elapsed()))
        .await
        .inspect_err(|_| {
            instance.health().request_failed();
        })?;
    instance.health().request_succeeded();
    if !status.is_success() {
        return Ok(LegEnd::Refused(Answer::whole(head, body)));
    }
    let object = Object::scan(body).map_err(|e| Error::Cut { phase: Phase::Prefill, source: Box::new(e) })?;
    Ok(LegEnd::Answered(object))
}

/// What prefill hands over. Without KV transfer params there may still be something to fetch, for
/// connectors that find it by the prompt; the policy knows.
fn handle(attempt: &Attempt<'_>, answer: Object) -> Prefilled {
    let params = answer.get(KV_TRANSFER_PARAMS).filter(|p| !["null", "{}"].contains(p)).map(str::to_owned);
    attempt.facts.set_prefill_answer(answer);
    match params {
        Some(params) => {
            let releaser = attempt.app.releaser.clone();
            Prefilled::Handle(Handle::new(params.into(), attempt.app.config.lease, releaser))
        }
        None => Prefilled::Skipped,
    }
}

/// Goes on without a prefill leg, or gives up.
fn without(attempt: &mut Attempt<'_>, fallback: Fallback, error: Error) -> Result<Prefilled, Error> {
    if attempt.app.config.without_prefill == WithoutPrefill::Reject {
        return Err(error);
    }
    attempt.account.fell_back(fallback, Some(&error));
    attempt.pair.prefill = None;
    attempt.account.without_prefill();
    Ok(Prefilled::Skipped)
}
