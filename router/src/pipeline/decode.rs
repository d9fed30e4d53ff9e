//! The decode leg: hands the KV cache over and gets the answer that the client will see.

use edge_router_policy::{InstanceId, Phase};
use http::StatusCode;
use tokio::time::timeout;

use super::answer::{Answer, Watch};
use super::attempt::{Attempt, Retries};
use super::homes::Expected;
use super::opening::{Beginning, Listening};
use super::parse::GENERATE;
use super::readback::Keeper;
use super::schedule::{Scheduled, schedule};
use crate::body::rename::Rename;
use crate::error::Error;
use crate::fleet::Instance;
use crate::handoff::{self, Destination, Handle, Unsafe};
use crate::metrics::Fallback;
use crate::policy::CheckedLeg;
use crate::upstream::{LegRequest, SendError};

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
        let leg = merge(attempt, handle.as_ref(), &scheduled.chosen.instance);
        let mut carried = handle.as_mut().filter(|_| leg.has_params());
        if let Some(handle) = &mut carried {
            handle.used();
        }
        let instance = scheduled.chosen.instance.clone();
        let request = request(attempt, &leg, &scheduled);
        match instance.pool().send(&request, attempt.app.config.timeouts.decode_head).await {
            Err(error) => {
                let may_go_on = error.never_sent();
                unanswered(attempt, &scheduled, retries, error, carried)?;
                // With or without a handle: prefill was told who comes, and no other can fetch it.
                // Nor can another fetch what encoders have pushed to this one.
                let pushed = attempt.pair.prefill.is_none() && attempt.encodings_are_pushed();
                if !may_go_on || pushed || (attempt.paired && attempt.pair.prefill.is_some()) {
                    return Ok(Decoded::TryAgain);
                }
            }
            Ok(response) => {
                scheduled.in_flight.answered();
                let carries_params = leg.has_params() || attempt.hands_encodings();
                let answer = Listening::to(response, attempt.asks_for_token_ids());
                let leg = Begun { scheduled, carries_params, answer };
                return answered(attempt, leg, retries, carried).await;
            }
        }
    }
}

/// The leg as it goes to the instance in `scheduled`.
pub(super) fn request(attempt: &mut Attempt<'_>, leg: &CheckedLeg, scheduled: &Scheduled) -> LegRequest {
    attempt.keeper = Keeper::of(attempt, scheduled.chosen.instance.spec());
    let mut request = attempt.leg_request(leg, scheduled);
    request.repeatable &= !leg.has_params();
    attempt.rename = leg.request_id().map(|theirs| Rename::new(theirs.as_bytes(), &attempt.facts.id));
    request
}

/// A decode instance other than the one that ran prefill, if there is another.
pub(super) fn choose(attempt: &Attempt<'_>, retries: &Retries) -> Result<Scheduled, Error> {
    let Some(prefill) = attempt.pair.prefill else { return schedule(attempt, Phase::Decode, &retries.tried) };
    let mut others = retries.tried.clone();
    others.push(prefill.instance);
    schedule(attempt, Phase::Decode, &others).or_else(|_| schedule(attempt, Phase::Decode, &retries.tried))
}

/// How the leg differs from the client's request. What could harm the decode engine is left out.
fn merge(attempt: &mut Attempt<'_>, handle: Option<&Handle>, to: &Instance) -> CheckedLeg {
    let app = attempt.app;
    if attempt.pair.prefill.is_none() {
        return CheckedLeg::default();
    }
    if handle.is_some_and(|h| !h.is_in_time()) {
        attempt.account.fell_back(Fallback::LateHandle, None);
        attempt.encodings_are_spent();
        return CheckedLeg::default();
    }
    if attempt.pair.prefill.map(|p| p.instance) == Some(to.id()) {
        // It has the KV cache already.
        return CheckedLeg::default();
    }
    let params = handle.and_then(Handle::params);
    let decided = app.chain.merge_kv_params(&attempt.facts, attempt.pair, params, &app.fleet.snapshot());
    // A policy that leaves the body plain may have its reason, where prefill was not asked to keep anything for
    // decode: some connectors find the KV cache by the prompt.
    let by_prompt = !decided.built_in && !attempt.asked_to_keep;
    let mut leg = decided.value;
    if let Some(danger) = danger(&leg, to) {
        attempt.account.unsafe_handle(&decided.by, &danger);
        leg.drop_params();
        attempt.encodings_are_spent();
    } else if !leg.has_params() && !by_prompt {
        let why = if params.is_some() { Fallback::BadHandle } else { Fallback::NoHandle };
        attempt.account.fell_back(why, None);
        attempt.encodings_are_spent();
    }
    leg
}

/// The leg to be sent together with prefill's, if the policies can make one before prefill has answered.
pub(super) fn merge_ahead(attempt: &Attempt<'_>) -> Option<CheckedLeg> {
    let to = &attempt.decode_ahead.as_ref()?.chosen.instance;
    if attempt.pair.prefill.map(|p| p.instance) == Some(to.id()) {
        return None;
    }
    let app = attempt.app;
    let decided = app.chain.merge_kv_params(&attempt.facts, attempt.pair, None, &app.fleet.snapshot());
    // What is dangerous is told when the legs are merged after all.
    let leg = Some(decided.value).filter(CheckedLeg::has_params);
    leg.filter(|leg| danger(leg, to).is_none())
}

/// How the leg's params could harm the engine that it goes `to`.
fn danger(leg: &CheckedLeg, to: &Instance) -> Option<Unsafe> {
    let to = Destination::new(to.spec(), leg.request_id());
    leg.params().find_map(|params| handoff::check_decode(params, &to).err())
}

/// No answer came. `Ok` if the request may be tried again.
pub(super) fn unanswered(
    attempt: &mut Attempt<'_>,
    scheduled: &Scheduled,
    retries: &mut Retries,
    source: SendError,
    carried: Option<&mut Handle>,
) -> Result<(), Error> {
    let never_sent = source.never_sent();
    if let Some(handle) = carried {
        if never_sent { handle.not_used_after_all() } else { handle.turned_away() }
    }
    failed(attempt, scheduled, retries, source, !never_sent)
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

/// A leg whose answer has begun.
pub(super) struct Begun {
    pub(super) scheduled: Scheduled,
    /// Whether it depends on something that may not be there to be fetched.
    pub(super) carries_params: bool,
    pub(super) answer: Listening,
}

/// The engine has answered, one way or another.
pub(super) async fn answered(
    attempt: &mut Attempt<'_>,
    leg: Begun,
    retries: &mut Retries,
    mut handle: Option<&mut Handle>,
) -> Result<Decoded, Error> {
    let Begun { scheduled, carries_params, answer } = leg;
    let (instance, status) = (scheduled.chosen.instance.clone(), answer.status());
    if let Some(handle) = handle.as_deref_mut().filter(|_| status.is_server_error()) {
        handle.turned_away();
    }
    if let Some(handle) = handle.as_deref_mut()
        && status.is_client_error()
        && attempt.parsed.uri.path() == GENERATE
    {
        // Elsewhere an engine that refuses a request lets go of what that names (engine contract §0.7).
        handle.not_used_after_all();
    }
    if may_start_over(attempt, retries, &scheduled, status, carries_params) {
        attempt.account.leg_failed(&Error::Refused { phase: Phase::Decode, status });
        return Ok(Decoded::TryAgain);
    }
    let received = match begin(attempt, answer, carries_params).await {
        Ok(Beginning::Speaks(response)) => {
            let watch = Watch {
                idle: attempt.app.config.timeouts.stream_idle,
                expected: attempt.parsed.stateful.then(|| Expected::new(&attempt.app.homes, instance.id())),
                rename: attempt.rename.take(),
                keeper: attempt.keeper.take(),
            };
            Answer::receive(response, scheduled.in_flight, watch).await
        }
        Ok(Beginning::Fails(answer)) => {
            let status = answer.status();
            if let Some(handle) = handle {
                handle.turned_away();
            }
            let again = status.is_server_error()
                && may_start_over(attempt, retries, &scheduled, LOAD_FAILED, carries_params);
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
            lost(attempt, instance.id(), retries, error)?;
            Ok(Decoded::TryAgain)
        }
    }
}

/// The answer broke off before anything of it was sent to the client. `Ok` if the request may be tried
/// again.
pub(super) fn lost(
    attempt: &mut Attempt<'_>,
    instance: InstanceId,
    retries: &mut Retries,
    error: Error,
) -> Result<(), Error> {
    retries.failed(instance);
    attempt.account.leg_failed(&error);
    if retries.take(attempt.app, Phase::Decode) { Ok(()) } else { Err(error) }
}

/// Waits, where the operator wants it, until a stream that needs a KV cache has begun in earnest.
async fn begin(
    attempt: &Attempt<'_>,
    mut answer: Listening,
    carries_params: bool,
) -> Result<Beginning, Error> {
    let limit = attempt.app.config.timeouts.hold_opening;
    if carries_params && !limit.is_zero() && answer.may_fail() {
        let cut = |source| Error::Cut { phase: Phase::Decode, source: Box::new(source) };
        timeout(limit, answer.listen()).await.unwrap_or(Ok(())).map_err(cut)?;
    }
    Ok(answer.end())
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
    carries_params: bool,
) -> bool {
    let instance = &scheduled.chosen.instance;
    match (status, attempt.pair.prefill) {
        (status, _) if is_full(status) => {
            retries.failed(instance.id());
            retries.take(attempt.app, Phase::Decode)
        }
        // Nobody can tell which of the legs before it is to blame: all of them run again, prefill elsewhere
        // if there is an elsewhere.
        (LOAD_FAILED, prefill) if attempt.hands_encodings() => {
            let mut others = retries.tried.clone();
            others.extend(prefill.map(|prefill| prefill.instance));
            if attempt.app.fleet.snapshot().available(Phase::Prefill, &others).next().is_some() {
                retries.tried = others;
            }
            retries.take_any(attempt.app, Phase::Decode)
        }
        (LOAD_FAILED, Some(prefill)) if carries_params => {
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
