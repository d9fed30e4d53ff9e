//! Sends a leg whose answer is read whole: what prefill and encode legs have in common.

use bytes::Bytes;
use edge_router_policy::Phase;
use http::StatusCode;
use http::response::Parts;
use tokio::time::{Duration, Instant};

use super::answer;
use super::schedule::Scheduled;
use crate::error::{Error, Unavailable};
use crate::upstream::LegRequest;

/// Sends `request` to the instance in `scheduled` and reads its answer, both within `limit`. `failed` tells
/// the statuses with which the instance fails the leg; they count against its health if it `is_to_blame`.
///
/// # Errors
/// If the instance has failed the leg; a 503 says that it is well, but takes nothing more at the moment.
pub(super) async fn exchange(
    scheduled: &mut Scheduled,
    request: &LegRequest,
    (phase, limit): (Phase, Duration),
    failed: impl FnOnce(StatusCode) -> bool,
    is_to_blame: bool,
) -> Result<(Parts, Bytes), Error> {
    let instance = &scheduled.chosen.instance;
    let started = Instant::now();
    let response = instance.pool().send(request, limit).await.map_err(|source| {
        instance.health().request_failed();
        Error::Leg { phase, source }
    })?;
    scheduled.in_flight.answered();
    let status = response.status();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return Err(Error::NoInstance { phase, why: Unavailable::Saturated });
    }
    if failed(status) {
        if is_to_blame {
            instance.health().request_failed();
        }
        return Err(Error::Refused { phase, status });
    }
    let (head, body) = response.into_parts();
    let body =
        answer::whole(body, phase, limit.saturating_sub(started.elapsed())).await.inspect_err(|_| {
            instance.health().request_failed();
        })?;
    instance.health().request_succeeded();
    Ok((head, body))
}
