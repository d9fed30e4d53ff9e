//! The way of a request. [`handle`] is the whole story; each step is a file.
//!
//! parse, and render where token ids take the place of the client's words; then for each attempt: encode legs
//! if there are media and encoders, schedule(prefill), rewrite, prefill leg, schedule(decode), merge, decode
//! leg; then the answer is streamed, derendered if it is in token ids, and what became of the request is
//! accounted for when the answer's body ends or is dropped.

mod account;
mod answer;
mod attempt;
mod decode;
mod derender;
mod encode;
mod exchange;
mod headers;
mod hint;
mod homes;
mod opening;
mod parse;
mod prefill;
mod readback;
mod render;
mod renderers;
mod schedule;
mod stream;
mod together;

use http::{Request, Response};
use hyper::body::Incoming;

pub use account::Account;
pub use answer::AnswerBody;
pub use homes::Homes;

use self::answer::Answer;
use self::attempt::{Attempt, Retries};
use self::decode::Decoded;
use self::encode::Encoding;
use self::parse::Parsed;
use self::prefill::Prefilled;
use self::render::Rendered;
use crate::app::App;
use crate::error::Error;
use crate::server::route::Endpoint;

/// Serves one request to an engine endpoint.
///
/// # Errors
/// [`Error`] if no engine's answer can be given to the client. Nothing has been sent to it then.
pub async fn handle(
    app: &App,
    endpoint: &Endpoint,
    request: Request<Incoming>,
    account: &mut Account,
) -> Result<Response<AnswerBody>, Error> {
    let parsed = parse::parse(app, endpoint, request).await?;
    let parsed = match render::run(app, parsed, account).await? {
        Rendered::Request(parsed) => parsed,
        Rendered::Answered(answer) => return Ok(answer.for_client()),
    };
    let answer = hint::of_engine(&parsed, legs(app, &parsed, account).await?);
    derender::run(app, &parsed, answer).await.map(Answer::for_client)
}

/// Runs the legs, anew as long as one fails and there is another try.
async fn legs(app: &App, parsed: &Parsed, account: &mut Account) -> Result<Answer, Error> {
    let mut retries = Retries::new(app.config.retries);
    loop {
        let mut attempt = Attempt::new(app, parsed, account);
        if let Encoding::Refused(answer) = encode::run(&mut attempt, &mut retries).await? {
            return Ok(answer);
        }
        let prefilled = if parsed.two_legs {
            prefill::run(&mut attempt, &mut retries).await?
        } else {
            Prefilled::Skipped
        };
        let handle = match prefilled {
            Prefilled::Handle(handle) => Some(handle),
            Prefilled::Skipped => None,
            Prefilled::Refused(answer) => return Ok(answer),
            Prefilled::Decoded(Decoded::Answer(answer)) => return Ok(answer),
            Prefilled::Decoded(Decoded::TryAgain) => continue,
        };
        match decode::run(&mut attempt, handle, &mut retries).await? {
            Decoded::Answer(answer) => return Ok(answer),
            Decoded::TryAgain => {}
        }
    }
}
