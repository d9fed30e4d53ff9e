//! Turns an answer in token ids back into the client's dialect, where its request went through a renderer.
//!
//! An answer that came whole takes one call. A stream takes one for each of its events, and between two of
//! them the renderer's state is kept here: renderers remember nothing (engine contract §2).

mod shape;
mod stream;

use bytes::Bytes;
use edge_router_policy::Edit;
use http::HeaderMap;
use tokio::time::Instant;

use super::answer::{Answer, Source};
use super::parse::Parsed;
use super::renderers::Renderers;
use crate::app::App;
use crate::body::scan::Object;
use crate::body::splice::{Segments, splice};
use crate::error::Error;
use crate::error::render::RenderError;

pub(super) use stream::Derendered;

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Chat,
    Completion,
}

impl Dialect {
    /// Of the endpoint at that path.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completion),
            _ => None,
        }
    }

    /// Where a renderer makes token ids of it.
    pub(super) fn render(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions/render",
            Self::Completion => "/v1/completions/render",
        }
    }

    fn derender(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions/derender",
            Self::Completion => "/v1/completions/derender",
        }
    }

    /// The field in which a renderer expects the client's request.
    fn request(self) -> &'static str {
        match self {
            Self::Chat => "chat_request",
            Self::Completion => "completion_request",
        }
    }

    /// A prompt that says nothing, for calls that need all of a request but that.
    fn without_prompt(self) -> Edit {
        let (name, value) = match self {
            Self::Chat => ("messages", r#"[{"role":"user","content":"-"}]"#),
            Self::Completion => ("prompt", r#""-""#),
        };
        Edit::Set { name: name.into(), value: value.into() }
    }
}

/// What it takes to turn an answer back.
#[derive(Debug)]
pub(super) struct WayBack {
    dialect: Dialect,
    /// The client's request, and the same without its prompt.
    request: Bytes,
    brief: Bytes,
    /// The answer's id as JSON, in the client's dialect.
    id: String,
    /// The model's name as JSON.
    model: String,
    /// Ids of the prompt's tokens as JSON.
    prompt: Bytes,
    headers: HeaderMap,
}

impl WayBack {
    /// Of `request`, of which a renderer has made `rendered`.
    pub(super) fn new(
        dialect: Dialect,
        request: Bytes,
        rendered: &Object,
        headers: HeaderMap,
    ) -> Result<Self, &'static str> {
        let object = Object::scan(request.clone()).map_err(|_| "the request is no JSON object")?;
        let id = rendered.get_str("request_id").ok_or("it has no request id")?;
        let prompt = rendered.get("token_ids").ok_or("it has no token ids")?;
        let model = object.get("model").or_else(|| rendered.get("model")).unwrap_or("null");
        Ok(Self {
            dialect,
            brief: splice(&object, &[dialect.without_prompt()]).to_bytes(),
            id: serde_json::Value::from(&*id).to_string(),
            model: model.to_owned(),
            prompt: Bytes::copy_from_slice(prompt.as_bytes()),
            request,
            headers,
        })
    }

    /// An engine's answer with its prompt, or an event without, as a renderer is to see it: under the client's
    /// id, and without the token that ended it, of which the client is to see nothing.
    fn prepared(&self, generated: &Object, prompt: Option<&Bytes>) -> Bytes {
        let mut edits = vec![shape::set("request_id", self.id.clone())];
        if let Some(prompt) = prompt {
            edits.push(shape::set("prompt_token_ids", String::from_utf8_lossy(prompt).into_owned()));
        }
        let choices = generated.get("choices");
        if let Some(choices) = choices.and_then(|c| shape::without_last_words(c, prompt.is_some())) {
            edits.push(shape::set("choices", choices));
        }
        splice(generated, &edits).to_bytes()
    }

    /// Has a renderer turn `generated` back, an answer that came whole.
    async fn whole(&self, renderers: &Renderers, generated: &Object) -> Result<Bytes, RenderError> {
        let answer = self.prepared(generated, Some(&self.prompt));
        let (open, close) = match self.dialect {
            Dialect::Chat => (r#"{"generate_response":"#, ""),
            Dialect::Completion => (r#"{"generate_responses":["#, "]"),
        };
        let rest = format!(r#"{close},"model":{},"{}":"#, self.model, self.dialect.request());
        let body = [open.into(), answer, rest.into(), self.request.clone(), "}".into()];
        let said = self.call(renderers, body.into_iter().collect()).await?;
        let object = Object::scan(said).ok().filter(|object| object.is_set("choices"));
        let object = object.ok_or(RenderError::Unusable("it has no choices"))?;
        // The engine has counted, the renderer can't.
        let usage = generated.get("usage").map(|usage| shape::set("usage", usage.to_owned()));
        let choices = object.get("choices").zip(generated.get("choices"));
        let choices = choices.and_then(|(said, generated)| shape::silenced(said, generated));
        let choices = choices.map(|choices| shape::set("choices", choices));
        let edits: Vec<Edit> = usage.into_iter().chain(choices).collect();
        Ok(splice(&object, &edits).to_bytes())
    }

    async fn call(&self, renderers: &Renderers, body: Segments) -> Result<Bytes, RenderError> {
        let started = Instant::now();
        let said = renderers.post(self.dialect.derender(), &self.headers, body).await?;
        if !said.head.status.is_success() {
            let why = String::from_utf8_lossy(&said.body).chars().take(300).collect::<String>();
            let (instance, status) = (said.by.address(), said.head.status.as_u16());
            tracing::warn!(instance, status, why, "renderer refuses an answer");
            return Err(RenderError::Refused(said.head.status));
        }
        renderers.metrics.request.derendered(started.elapsed());
        Ok(said.body)
    }
}

/// The answer as the client expects it.
pub(super) async fn run(app: &App, parsed: &Parsed, answer: Answer) -> Result<Answer, Error> {
    let Some(way_back) = parsed.way_back.as_ref().filter(|_| answer.head.status.is_success()) else {
        return Ok(answer);
    };
    let renderers = Renderers::of_answers(app);
    let Answer { head, body } = answer;
    let body = match body {
        Source::Whole(bytes, usage) => {
            let generated = Object::scan(bytes).map_err(|_| RenderError::Unusable("there is none"))?;
            Source::Whole(way_back.whole(&renderers, &generated).await?, usage)
        }
        Source::Stream(stream) => {
            Source::Derendered(Box::new(Derendered::new(stream, way_back.clone(), renderers)))
        }
        derendered @ Source::Derendered(_) => derendered,
    };
    Ok(Answer { head, body })
}
