//! A stream of token ids on its way to a client that wants text. One event is turned back at a time, and
//! nothing is read of the engine meanwhile: a slow client, or a slow renderer, slows the engine down.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use serde::Deserialize;
use tokio::time::{Sleep, sleep};

use super::shape::{self, Heading};
use super::{Dialect, WayBack};
use crate::body::scan::Object;
use crate::body::splice::Segments;
use crate::error::Error;
use crate::error::render::RenderError;
use crate::pipeline::account::Account;
use crate::pipeline::renderers::Renderers;
use crate::pipeline::stream::{BrokeOff, PARTING, Stream};

/// An event of token ids is some hundred bytes long.
const MAX_EVENT: usize = 4 * 1024 * 1024;

/// The engine's stream, turned back event by event.
pub(crate) struct Derendered {
    /// `None` once it has broken off: then the engine stops.
    stream: Option<Box<Stream>>,
    /// What of it was read and not looked at.
    unread: BytesMut,
    state: State,
}

enum State {
    Reading(Box<Translator>),
    Asking(Call),
    Parting(Pin<Box<Sleep>>, Option<RenderError>),
    Ended,
}

type Call = Pin<Box<dyn Future<Output = (Box<Translator>, Result<Bytes, RenderError>)> + Send>>;

impl fmt::Debug for Derendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Derendered").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Derendered {
    pub(super) fn new(mut stream: Box<Stream>, way_back: Arc<WayBack>, renderers: Renderers) -> Self {
        stream.keep_first_byte();
        let state = State::Reading(Box::new(Translator::new(way_back, renderers)));
        Self { stream: Some(stream), unread: BytesMut::new(), state }
    }

    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut account: Option<&mut Account>,
    ) -> Poll<Option<Result<Bytes, BrokeOff>>> {
        loop {
            match &mut self.state {
                State::Ended => return Poll::Ready(None),
                State::Parting(alarm, error) => {
                    ready!(alarm.as_mut().poll(cx));
                    let error = error.take().map(|error| Err(BrokeOff::Render(error)));
                    self.state = State::Ended;
                    return Poll::Ready(error);
                }
                State::Asking(call) => {
                    let (translator, said) = ready!(call.as_mut().poll(cx));
                    self.state = State::Reading(translator);
                    match said {
                        Ok(said) if said.is_empty() => {}
                        Ok(said) => return Poll::Ready(Some(Ok(spoken(said, account)))),
                        Err(error) => return self.break_off(error, account),
                    }
                }
                State::Reading(_) => match next_event(&mut self.unread) {
                    Some(event) => match generated(&event) {
                        Some(event) => self.ask(event),
                        None => return Poll::Ready(Some(Ok(spoken(event, account)))),
                    },
                    None if self.unread.len() > MAX_EVENT => {
                        return self.break_off(RenderError::Unusable("an event is too long"), account);
                    }
                    None => {
                        if let Some(end) = ready!(self.read(cx, account.as_deref_mut())) {
                            return Poll::Ready(end);
                        }
                    }
                },
            }
        }
    }

    /// Reads on. What is returned is the end.
    fn read(
        &mut self,
        cx: &mut Context<'_>,
        account: Option<&mut Account>,
    ) -> Poll<Option<Option<Result<Bytes, BrokeOff>>>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Some(None)) };
        match ready!(stream.poll(cx, account)) {
            Some(Ok(data)) => {
                self.unread.extend_from_slice(&data);
                Poll::Ready(None)
            }
            end => {
                self.state = State::Ended;
                Poll::Ready(Some(end))
            }
        }
    }

    fn ask(&mut self, event: Object) {
        if let State::Reading(mut translator) = std::mem::replace(&mut self.state, State::Ended) {
            self.state = State::Asking(Box::pin(async move {
                let said = translator.say(&event).await;
                (translator, said)
            }));
        }
    }

    /// The client is told in an event, and in that the answer has no proper end, as where an engine fails.
    fn break_off(
        &mut self,
        error: RenderError,
        account: Option<&mut Account>,
    ) -> Poll<Option<Result<Bytes, BrokeOff>>> {
        self.stream = None;
        if let Some(account) = account {
            account.broke_off(error.is_timeout(), &error);
        }
        let error = Error::Render(error);
        let last_words = format!("data: {}\n\n", error.json()).into();
        let Error::Render(error) = error else { return Poll::Ready(None) };
        self.state = State::Parting(Box::pin(sleep(PARTING)), Some(error));
        Poll::Ready(Some(Ok(last_words)))
    }
}

fn spoken(said: Bytes, account: Option<&mut Account>) -> Bytes {
    if let Some(account) = account {
        account.first_byte();
    }
    said
}

/// Takes the first whole event out.
fn next_event(unread: &mut BytesMut) -> Option<Bytes> {
    let lf = memmem::find(unread, b"\n\n").map(|at| at + 2);
    let crlf = memmem::find(unread, b"\r\n\r\n").map(|at| at + 4);
    let end = lf.into_iter().chain(crlf).min()?;
    Some(unread.split_to(end).freeze())
}

/// The event, if it holds what an engine has generated, and no comment, error or end.
fn generated(event: &Bytes) -> Option<Object> {
    let data = event.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"data:"))?;
    let object = Object::scan(event.slice_ref(data.trim_ascii())).ok()?;
    (object.is_set("choices") && !object.is_set("error")).then_some(object)
}

/// Turns events back, and keeps the renderer's state between them.
struct Translator {
    way_back: Arc<WayBack>,
    renderers: Renderers,
    heading: Heading,
    /// By the index of the choice.
    states: HashMap<u64, Kept>,
}

/// What a renderer wants to see again with the next event of a choice.
struct Kept {
    state: Bytes,
    /// It has a parser for the model, which reads the whole answer anew each time, and the request with it.
    parses: bool,
}

impl Translator {
    fn new(way_back: Arc<WayBack>, renderers: Renderers) -> Self {
        let object = match way_back.dialect {
            Dialect::Chat => "chat.completion.chunk",
            Dialect::Completion => "text_completion",
        };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let heading = Heading { id: way_back.id.clone(), object, created, model: way_back.model.clone() };
        Self { way_back, renderers, heading, states: HashMap::new() }
    }

    /// What the client is shown of an engine's event.
    async fn say(&mut self, event: &Object) -> Result<Bytes, RenderError> {
        #[derive(Deserialize)]
        struct Place {
            #[serde(default)]
            index: u64,
        }
        let usage = event.get("usage").filter(|usage| *usage != "null");
        let choices: Vec<Place> = event
            .get("choices")
            .and_then(|choices| serde_json::from_str(choices).ok())
            .ok_or(RenderError::Unusable("there are no choices"))?;
        let Some(Place { index }) = choices.first() else {
            // The last one, with the usage: there is nothing to turn back.
            return Ok(self.heading.event("[]", usage).into());
        };
        let body = self.question(*index, event);
        let said = self.way_back.call(&self.renderers, body).await?;
        self.shown(*index, said, usage).ok_or(RenderError::Unusable("it is no event of a stream"))
    }

    fn question(&self, index: u64, event: &Object) -> Segments {
        let WayBack { dialect, model, request, brief, prompt, .. } = &*self.way_back;
        let kept = self.states.get(&index);
        let all = kept.is_none_or(|kept| kept.parses);
        let state = kept.map_or(Bytes::from_static(b"null"), |kept| kept.state.clone());
        let mut body: Vec<Bytes> = vec![
            r#"{"stream":true,"generate_chunk":"#.into(),
            self.way_back.prepared(event, None),
            r#","stream_state":"#.into(),
            state,
            format!(r#","model":{model},"{}":"#, dialect.request()).into(),
            if all { request.clone() } else { brief.clone() },
        ];
        if all {
            body.extend([r#","prompt_token_ids":"#.into(), prompt.clone()]);
        }
        body.push("}".into());
        body.into_iter().collect()
    }

    /// Keeps the state, and shows the rest.
    fn shown(&mut self, index: u64, said: Bytes, usage: Option<&str>) -> Option<Bytes> {
        let said = Object::scan(said).ok()?;
        let part = |name| Object::scan(said.bytes().slice_ref(said.get(name)?.as_bytes())).ok();
        let (chunk, state): (Object, Object) = (part("chunk")?, part("stream_state")?);
        let parses = state.is_truthy("output_token_ids") || self.states.get(&index).is_some_and(|k| k.parses);
        self.states.insert(index, Kept { state: state.bytes().clone(), parses });
        if let Some(model) = chunk.get("model") {
            model.clone_into(&mut self.heading.model);
        }
        let choices = chunk.get("choices")?;
        let (role, said) = match self.way_back.dialect {
            Dialect::Chat => shape::chat(choices, !parses)?,
            Dialect::Completion => (None, Some(choices.to_owned())),
        };
        let role = role.map(|role| self.heading.event(&role, None)).unwrap_or_default();
        let said = said.map(|said| self.heading.event(&said, usage)).unwrap_or_default();
        Some((role + &said).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_one_by_one() {
        let mut unread = BytesMut::from("data: 1\r\n\r\n: ping\n\ndata: {\"choices\"");
        let mut next = || next_event(&mut unread);
        assert_eq!(next().as_deref(), Some(&b"data: 1\r\n\r\n"[..]));
        assert_eq!(next().as_deref(), Some(&b": ping\n\n"[..]));
        assert_eq!(next(), None);
    }

    #[test]
    fn only_what_was_generated_is_turned_back() {
        let is = |event: &'static str| generated(&Bytes::from_static(event.as_bytes())).is_some();
        assert!(is("data: {\"choices\":[]}\n\n") && is("data:{\"choices\":[{}],\"error\":null}\r\n\r\n"));
        for other in
            ["data: [DONE]\n\n", ": ping\n\n", "data: {\"error\":{},\"choices\":[]}\n\n", "data: {}\n\n"]
        {
            assert!(!is(other), "{other}");
        }
    }
}
