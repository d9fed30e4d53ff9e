//! The encode step: has encoders encode the media of a chat, and puts what stands for them into the
//! bodies of the legs that follow (engine contract §7).
//!
//! Nothing is sent to prefill or decode before all items are encoded. Who fails ends the step, and with
//! it all legs that are still under way: their connections are closed.

mod fan_out;
mod leg;
mod push;
mod rewrite;

use edge_router_policy::Phase;
use tokio::time::Instant;

use self::fan_out::{Ended, fan_out};
pub(super) use self::rewrite::Encoded;
use super::answer::Answer;
use super::attempt::{Attempt, Retries};
use super::schedule::can_schedule;
use crate::app::App;
use crate::body::media::{self, MediaItem};
use crate::body::scan::Object;
use crate::config::WithoutEncode;
use crate::error::{ClientError, Error};
use crate::metrics::Fallback;
use crate::server::route::Endpoint;

/// The only endpoint whose media encoders take.
const CHAT: &str = "/v1/chat/completions";

/// The items to be encoded: none where there are no encoders, unless the operator wants no other engine
/// to encode.
pub(super) fn media(app: &App, endpoint: &Endpoint, body: &Object) -> Result<Vec<MediaItem>, ClientError> {
    let has_encoders = app.fleet.snapshot().serving(Phase::Encode).next().is_some();
    if endpoint.path() != CHAT || !(has_encoders || app.config.without_encode == WithoutEncode::Reject) {
        return Ok(Vec::new());
    }
    media::items(body).map_err(|error| ClientError::Invalid(error.to_string()))
}

/// How the step ended.
pub(super) enum Encoding {
    /// The legs that follow can be sent; with encodings, if there is anything to encode.
    Done,
    /// An encoder refused an item; the client gets its answer.
    Refused(Answer),
}

/// Has all items encoded, on other instances if one fails.
///
/// # Errors
/// If an item can't be encoded. Where no encoder can be chosen at all, that is up to the operator.
pub(super) async fn run(attempt: &mut Attempt<'_>, retries: &mut Retries) -> Result<Encoding, Error> {
    let items = &attempt.parsed.media;
    if items.is_empty() {
        return Ok(Encoding::Done);
    }
    // Encodings that nobody fetches would only be in the way.
    can_schedule(attempt, Phase::Decode, &retries.tried)?;
    let started = Instant::now();
    // Whoever finds nobody then says so.
    let Ok(push) = push::choose(attempt, retries) else { return Ok(Encoding::Done) };
    match fan_out(attempt, push.as_ref(), retries).await? {
        Ended::Encoded { encodings, legs } => {
            attempt.account.encoded(items.len(), legs, started.elapsed());
            let encoded = Encoded::of(&attempt.parsed.client.object, items, &encodings)?;
            attempt.encoded = Some(Encoded { pushed: push.is_some(), ..encoded });
            Ok(Encoding::Done)
        }
        Ended::Refused(answer) => Ok(Encoding::Refused(answer)),
        Ended::Nobody(error) if attempt.app.config.without_encode == WithoutEncode::Reject => Err(error),
        Ended::Nobody(error) => {
            attempt.account.fell_back(Fallback::NoEncode, Some(&error));
            Ok(Encoding::Done)
        }
    }
}
