//! Both legs at once, for connectors whose decode leg can be written before prefill has answered.
//!
//! Decode of such a connector waits for prefill's KV cache without a limit that would be of use (engine
//! contract §14.5), so the failure of one leg ends the other at once: its connection is closed.

use std::ops::ControlFlow;
use std::pin::{Pin, pin};

use edge_router_policy::{Handoff, Phase};

use super::attempt::{Attempt, Retries};
use super::decode::{self, Begun, Decoded};
use super::opening::Listening;
use super::prefill::{self, LegEnd, PrefillLeg, Prefilled};
use super::schedule::Scheduled;
use crate::error::Error;
use crate::handoff::Handle;
use crate::metrics::Fallback;
use crate::upstream::SendError;

/// Whether the legs ran together.
pub(super) enum Ran {
    Together(Prefilled),
    /// What decode is sent depends on what prefill answers.
    OneAfterTheOther(PrefillLeg),
}

/// Runs the leg together with that of the decode instance that was chosen ahead, if the policies ask for
/// it and can make both.
pub(super) async fn run(
    attempt: &mut Attempt<'_>,
    prefill: PrefillLeg,
    retries: &mut Retries,
) -> Result<Ran, Error> {
    if attempt.app.chain.handoff() != Handoff::Concurrent {
        return Ok(Ran::OneAfterTheOther(prefill));
    }
    let Some(leg) = decode::merge_ahead(attempt) else { return Ok(Ran::OneAfterTheOther(prefill)) };
    let Some(mut scheduled) = attempt.decode_ahead.take() else { return Ok(Ran::OneAfterTheOther(prefill)) };
    attempt.account.decode_at(&scheduled);
    let (app, sent) = (attempt.app, prefill.sent());
    let (instance, request) = (scheduled.chosen.instance.clone(), decode::request(attempt, &leg, &scheduled));
    // An answer that is not streamed begins when it is complete.
    let limit = app.config.timeouts.prefill + app.config.timeouts.decode_head;
    let names_tokens = attempt.asks_for_token_ids();
    let sending = instance.pool().send(&request, limit);
    let mut decoding = pin!(async { Ok(Listening::to(sending.await?, names_tokens)) });
    let mut answer = None;

    let mut handle = match first(prefill.send(app), decoding.as_mut(), &mut answer).await {
        First::Prefill(end) => {
            let end = prefill::settle(attempt, retries, &sent, end);
            match kept(attempt, retries, end) {
                ControlFlow::Continue(handle) => Some(handle),
                ControlFlow::Break(end) => return end.map(Ran::Together),
            }
        }
        First::Decode(Ok(())) => {
            attempt.account.prefill_done(sent.at.elapsed());
            None
        }
        First::Decode(Err(lost)) => return without_answer(attempt, &scheduled, retries, lost, None),
    };
    let answer = match answer {
        Some(answer) => answer,
        None => match decoding.await {
            Ok(answer) => answer,
            Err(error) => {
                let lost = Lost::Unanswered(error);
                return without_answer(attempt, &scheduled, retries, lost, handle.as_mut());
            }
        },
    };
    scheduled.in_flight.answered();
    let begun = Begun { scheduled, carries_params: true, answer };
    let decoded = decode::answered(attempt, begun, retries, handle.as_mut()).await?;
    Ok(Ran::Together(Prefilled::Decoded(decoded)))
}

/// Which leg was heard of first.
enum First {
    Prefill(Result<LegEnd, Error>),
    /// It speaks, or has refused, and has no need of prefill any more; or it is lost.
    Decode(Result<(), Lost>),
}

/// Why decode gave no answer.
enum Lost {
    Unanswered(SendError),
    Cut(hyper::Error),
}

/// Waits for either leg. If it is decode, prefill's connection is closed. The head of decode's answer is
/// no sign of life: engines send it before they have the KV cache.
async fn first(
    prefilling: impl Future<Output = Result<LegEnd, Error>>,
    decoding: Pin<&mut impl Future<Output = Result<Listening, SendError>>>,
    answer: &mut Option<Listening>,
) -> First {
    let heard = async {
        let listening = answer.insert(decoding.await.map_err(Lost::Unanswered)?);
        if listening.may_fail() { listening.listen().await.map_err(Lost::Cut) } else { Ok(()) }
    };
    tokio::select! {
        biased;
        end = prefilling => First::Prefill(end),
        heard = heard => First::Decode(heard),
    }
}

/// What prefill keeps for decode. If that is nothing, decode waits in vain.
fn kept(
    attempt: &mut Attempt<'_>,
    retries: &mut Retries,
    end: Result<Prefilled, Error>,
) -> ControlFlow<Result<Prefilled, Error>, Handle> {
    match end {
        Ok(Prefilled::Handle(mut handle)) => {
            handle.used();
            ControlFlow::Continue(handle)
        }
        Ok(Prefilled::Skipped) => {
            attempt.account.fell_back(Fallback::NoHandle, None);
            attempt.encodings_are_spent();
            attempt.go_without_prefill();
            ControlFlow::Break(Ok(Prefilled::Skipped))
        }
        // With fresh ids: engines remember those that came to nothing.
        Err(_) if retries.take(attempt.app, Phase::Prefill) => {
            ControlFlow::Break(Ok(Prefilled::Decoded(Decoded::TryAgain)))
        }
        Err(error) => ControlFlow::Break(prefill::without(attempt, Fallback::PrefillFailed, error)),
        refused => ControlFlow::Break(refused),
    }
}

/// Decode gave no answer: the request starts over, or fails.
fn without_answer(
    attempt: &mut Attempt<'_>,
    scheduled: &Scheduled,
    retries: &mut Retries,
    lost: Lost,
    handle: Option<&mut Handle>,
) -> Result<Ran, Error> {
    match lost {
        Lost::Unanswered(error) => decode::unanswered(attempt, scheduled, retries, error, handle)?,
        Lost::Cut(source) => {
            scheduled.chosen.instance.health().request_failed();
            let error = Error::Cut { phase: Phase::Decode, source: Box::new(source) };
            decode::lost(attempt, scheduled.chosen.instance.id(), retries, error)?;
        }
    }
    Ok(Ran::Together(Prefilled::Decoded(Decoded::TryAgain)))
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::{Instant, sleep};

    use super::*;

    const WHILE: Duration = Duration::from_secs(7);

    fn gone() -> SendError {
        SendError::TimedOut { address: "d:1".into(), after: WHILE }
    }

    #[tokio::test(start_paused = true)]
    async fn decodes_end_ends_prefill_at_once() {
        let (alive, ended) = oneshot::channel::<()>();
        let prefilling = async move {
            let _alive = alive;
            pending().await
        };
        let decoding = pin!(async {
            sleep(WHILE).await;
            Err(gone())
        });
        let (began, mut answer) = (Instant::now(), None);
        assert!(matches!(first(prefilling, decoding, &mut answer).await, First::Decode(Err(_))));
        assert!(ended.await.is_err(), "the connection is closed with the future");
        assert_eq!(began.elapsed(), WHILE);
    }

    #[tokio::test(start_paused = true)]
    async fn prefills_end_is_not_waited_for_by_decode() {
        let prefilling = async {
            sleep(WHILE).await;
            Err(Error::ShuttingDown)
        };
        let (began, mut answer) = (Instant::now(), None);
        let heard = first(prefilling, pin!(pending()), &mut answer).await;
        assert!(matches!(heard, First::Prefill(Err(Error::ShuttingDown))));
        assert_eq!((began.elapsed(), answer.is_none()), (WHILE, true));
    }
}
