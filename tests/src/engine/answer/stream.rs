//! The answer as server-sent events, in the dialect of the endpoint.

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde::Serialize;

use super::chunks::Chunks;
use super::messages::MessageEvents;
use super::tokens::TokenEvents;
use crate::engine::body::{Sender, SimBody, channel};
use crate::engine::call::{Call, Endpoint};
use crate::engine::generate::{Event, Finish, Generation};
use crate::engine::rejection::Rejection;

/// How the OpenAI-style streams end.
pub(super) const DONE: &str = "data: [DONE]\n\n";

/// How an endpoint words its events. Each string is one event, as sent.
pub(super) trait Dialect: Send + Sync {
    /// Before the first token.
    fn opening(&self) -> Vec<String>;

    /// One token of the choice `index`; it may be worth no event.
    fn token(&mut self, index: usize, id: u32, text: String, finish: Option<&Finish>) -> Option<String>;

    /// After the last token.
    fn closing(&self, cached_tokens: usize) -> Vec<String>;

    /// Instead of the rest.
    fn failure(&self, rejection: &Rejection) -> Vec<String>;
}

/// An event without a name.
pub(super) fn frame(data: &impl Serialize) -> String {
    format!("data: {}\n\n", serde_json::to_string(data).unwrap_or_default())
}

/// Answers with a stream, at once: whatever goes wrong later goes wrong inside it.
pub(crate) fn stream(
    call: Call,
    generation: Result<Generation, Rejection>,
    details: bool,
) -> Response<SimBody> {
    let mut dialect: Box<dyn Dialect> = match call.endpoint {
        Endpoint::Completions | Endpoint::Chat => Box::new(Chunks::new(call, details)),
        Endpoint::Messages => Box::new(MessageEvents::new(call)),
        Endpoint::Generate => Box::new(TokenEvents::new(call, details)),
    };
    let mut response = Response::new(channel(move |out| async move {
        let result = match generation {
            Ok(generation) => write(dialect.as_mut(), generation, &out).await,
            Err(rejection) => Err(rejection),
        };
        if let Err(rejection) = result {
            send(&out, dialect.failure(&rejection)).await;
        }
    }));
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

async fn write(dialect: &mut dyn Dialect, mut generation: Generation, out: &Sender) -> Result<(), Rejection> {
    send(out, dialect.opening()).await;
    let mut cached_tokens = 0;
    while let Some((index, event)) = generation.next().await {
        match event {
            Event::Failed(rejection) => return Err(rejection),
            Event::Token { id, text, finish } => {
                send(out, dialect.token(index, id, text, finish.as_ref())).await;
                cached_tokens += finish.map_or(0, |finish| finish.cached_tokens);
            }
        }
    }
    send(out, dialect.closing(cached_tokens)).await;
    Ok(())
}

async fn send(out: &Sender, frames: impl IntoIterator<Item = String>) {
    for frame in frames {
        out.send(Bytes::from(frame)).await;
    }
}
