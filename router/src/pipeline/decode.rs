//! The decode leg: hands the KV cache over and gets the answer that the client will see.

use edge_router_policy::connectors::KV_TRANSFER_PARAMS;
use edge_router_policy::{Edit, Phase};
use http::{Response, StatusCode};

use super::answer::{Answer, is_event_stream};
use super::attempt::{Attempt, Retries};
use super::homes::Expected;
use super::opening::{self, Beginning};
use super::schedule::{Scheduled, schedule};
use crate::error::Error;
use crate::handoff::{self, Handle};
use crate::metrics::Fallback;
use crate::policy::CheckedLeg;
use crate::upstream::{ResponseBody, SendError};

/// The status of a decode engine that could not fetch the KV cache.
const LOAD_FAILED: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

/// How the decode leg ended.
pub(super) enum Decoded {
    /// The client gets this.
    Answer(Answer),
    /// Nothing has been sent to the client; the request starts over.
    TryAgain,
}

/// Runs the leg. The handle is sent once; to another instance only if the first can't have seen it.
pub(super) async fn run(
    attempt: &mut Attempt<'_>,
    mut handle: Option<Handle>,
    retries: &mut Retries,
) -> Result<Decoded, Error> {
    loop {
        let mut scheduled = match attempt.decode_ahead.take() {
            Some(chosen_before) => chosen_before,
            None => choose(attempt, retries)?,
        };
        attempt.pair.decode = Some(scheduled.chosen.placement());
        attempt.account.decode_at(&scheduled);
        let leg = merge(attempt, handle.as_ref());
        let carries_handle = leg.edits.iter().any(|e| sets_params(e).is_some());
        let mut request = attempt.leg_request(&leg, &scheduled);
        request.repeatable = !carries_handle;
        let mut carried = handle.as_mut().filter(|_| carries_handle);
        if let Some(handle) = &mut carried {
            handle.used();
        }
        let instance = scheduled.chosen.instance.clone();
        let sent = instance.pool().send(&request, attempt.app.config.timeouts.decode_head).await;
        match sent {
            Err(error) if error.never_sent() => {
                if let Some(handle) = carried {
                    handle.not_used_after_all();
                }
                failed(attempt, &scheduled, retries, error, false)?;
                // With or without a handle: prefill was told who comes, and no other can fetch it.
                if attempt.paired && attempt.pair.prefill.is_some() {
                    return Ok(Decoded::TryAgain);
                }
            }
            Err(error) => {
                if let Some(handle) = carried {
                    handle.turned_away();
                }
                failed(attempt, &scheduled, retries, error, true)?;
                return Ok(Decoded::TryAgain);
            }
            Ok(response) => {
                scheduled.in_flight.answered();
                return answered(attempt, scheduled, retries, response, carries_handle, carried).await;
            }
        }
    }
}

/// A decode instance other than the one that ran prefill, if there is another.
pub(super) fn choose(attempt: &Attempt<'_>, retries: &Retries) -> Result<Scheduled, Error> {
    let Some(prefill) = attempt.pair.prefill else { return schedule(attempt, Phase::Decode, &retries.tried) };
    let mut others = retries.tried.clone();
    others.push(prefill.instance);
    schedule(attempt, Phase::Decode, &others).or_else(|_| schedule(attempt, Phase::Decode, &retries.tried))
}

/// How the leg differs from the client's request. What could harm the decode engine is left out.
fn merge(attempt: &mut Attempt<'_>, handle: Option<&Handle>) -> CheckedLeg {
    let app = attempt.app;
    if attempt.pair.prefill.is_none() {
        return CheckedLeg::default();
    }
    if handle.is_some_and(|h| !h.is_in_time()) {
        attempt.account.fell_back(Fallback::LateHandle, None);
        return CheckedLeg::default();
    }
    if attempt.pair.prefill.map(|p| p.instance) == attempt.pair.decode.map(|p| p.instance) {
        // It has the KV cache already.
        return CheckedLeg::default();
    }
    let params = handle.and_then(Handle::params);
    let decided = app.chain.merge_kv_params(&attempt.facts, attempt.pair, params, &app.fleet.snapshot());
    let mut leg = decided.value;
    let unsafe_params = leg.edits.iter().filter_map(sets_params).find_map(|p| handoff::check(p).err());
    if let Some(danger) = unsafe_params {
        attempt.account.unsafe_handle(&decided.by, &danger);
        leg.edits.retain(|e| sets_params(e).is_none());
    } else if decided.built_in && leg.edits.is_empty() {
        // A policy that leaves the body plain may have its reason: some connectors find the KV cache by the
        // prompt.
        let why = if params.is_some() { Fallback::BadHandle } else { Fallback::NoHandle };
        attempt.account.fell_back(why, None);
    }
    leg
}

fn sets_params(edit: &Edit) -> Option<&str> {
    match edit {
        Edit::Set { name, value } if name == KV_TRANSFER_PARAMS => Some(value),
        _ => None,
    }
}

/// The leg failed without an answer. `Ok` if the request may be tried again.
fn failed(
    attempt: &mut Attempt<'_>,
    scheduled: &Scheduled,
    retries: &mut Retries,
    source: SendError,
    may_have_run: bool,
) -> Result<(), Error> {
    let instance = &scheduled.chosen.instance;
    // An engine that is silent for so long may still be at it; a second one would not be faster.
    let give_up = may_have_run && source.is_timeout();
    let stale = source.is_stale_connection();
    let error = Error::Leg { phase: Phase::Decode, source };
    attempt.account.leg_failed(&error);
    let again = if stale {
        retries.take_any(attempt.app, Phase::Decode)
    } else {
        instance.health().request_failed();
        retries.failed(instance.id());
        !give_up && retries.take(attempt.app, Phase::Decode)
    };
    if again { Ok(()) } else { Err(error) }
}

/// The engine has answered, one way or another.
async fn answered(
    attempt: &mut Attempt<'_>,
    scheduled: Scheduled,
    retries: &mut Retries,
    response: Response<ResponseBody>,
    carried_handle: bool,
    mut handle: Option<&mut Handle>,
) -> Result<Decoded, Error> {
    let (instance, status) = (scheduled.chosen.instance.clone(), response.status());
    if let Some(handle) = handle.as_deref_mut().filter(|_| status.is_server_error()) {
        handle.turned_away();
    }
    if may_start_over(attempt, retries, &scheduled, status, carried_handle) {
        attempt.account.leg_failed(&Error::Refused { phase: Phase::Decode, status });
        return Ok(Decoded::TryAgain);
    }
    let received = match begin(attempt, response, carried_handle).await {
        Ok(Beginning::Speaks(response)) => {
            let idle = attempt.app.config.timeouts.stream_idle;
            let expected = attempt.parsed.stateful.then(|| Expected::new(&attempt.app.homes, instance.id()));
            Answer::receive(response, scheduled.in_flight, idle, expected).await
        }
        Ok(Beginning::Fails(answer)) => {
            let status = answer.status();
            if let Some(handle) = handle {
                handle.turned_away();
            }
            let again = status.is_server_error()
                && may_start_over(attempt, retries, &scheduled, LOAD_FAILED, carried_handle);
            if again {
                attempt.account.leg_failed(&Error::Refused { phase: Phase::Decode, status });
            }
            return Ok(if again { Decoded::TryAgain } else { Decoded::Answer(answer) });
        }
        Err(error) => {
            instance.health().request_failed();
            Err(error)
        }
    };
    match received {
        Ok(answer) => Ok(Decoded::Answer(answer)),
        Err(error) => {
            retries.failed(instance.id());
            attempt.account.leg_failed(&error);
            if retries.take(attempt.app, Phase::Decode) { Ok(Decoded::TryAgain) } else { Err(error) }
        }
    }
}

/// Waits, where the operator wants it, until a stream that needs a KV cache has begun in earnest.
async fn begin(
    attempt: &Attempt<'_>,
    response: Response<ResponseBody>,
    carried_handle: bool,
) -> Result<Beginning, Error> {
    let limit = attempt.app.config.timeouts.hold_opening;
    let holds = carried_handle && response.status() == StatusCode::OK && is_event_stream(response.headers());
    if !holds || limit.is_zero() {
        return Ok(Beginning::Speaks(response.map(Into::into)));
    }
    let cut = |source| Error::Cut { phase: Phase::Decode, source: Box::new(source) };
    opening::hold(response, limit).await.map_err(cut)
}

/// Whether the engine has refused the request at the door: it is well, and has fetched nothing.
fn is_full(status: StatusCode) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE
}

/// Whether this status is worth a fresh try. A 500 to a leg with a handle most likely says that the KV
/// cache could not be fetched, which is no fault of the decode instance: the next try runs prefill
/// elsewhere, or goes without.
fn may_start_over(
    attempt: &Attempt<'_>,
    retries: &mut Retries,
    scheduled: &Scheduled,
    status: StatusCode,
    carried_handle: bool,
) -> bool {
    let instance = &scheduled.chosen.instance;
    match (status, attempt.pair.prefill) {
        (status, _) if is_full(status) => {
            retries.failed(instance.id());
            retries.take(attempt.app, Phase::Decode)
        }
        (LOAD_FAILED, Some(prefill)) if carried_handle => {
            retries.failed(prefill.instance);
            attempt.app.discovery.doubt_engine_ids();
            retries.take_any(attempt.app, Phase::Decode)
        }
        (status, _) if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
            instance.health().request_failed();
            retries.failed(instance.id());
            retries.take(attempt.app, Phase::Decode)
        }
        _ => false,
    }
}
