//! Serves with renderers: what needs no model is passed on to one, and where the operator wants it, chats
//! and completions are turned into token ids by one before their legs run (engine contract §2).

use std::sync::Arc;

use bytes::Bytes;
use edge_router_policy::Edit;
use http::Uri;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::account::Account;
use super::answer::{Answer, scrubbed};
use super::derender::{Dialect, WayBack};
use super::hint;
use super::parse::{GENERATE, Parsed, number, prompts, runs_alone};
use super::renderers::{Renderers, Said};
use crate::app::App;
use crate::body::scan::Object;
use crate::body::splice::splice;
use crate::body::sse::PRIVATE_FIELDS;
use crate::error::Error;
use crate::error::render::RenderError;
use crate::policy::ClientRequest;
use crate::upstream::LegRequest;

/// Lets a renderer leave out what was made of the media: then an engine would believe to have it cached.
const MM_PAYLOAD: &str = "mm_payload";

/// The default of vLLM's sampling parameters. Renderers leave a field out that has its default value, and
/// engines take an absent one for "as many as fit".
const DEFAULT_MAX_TOKENS: &str = "16";

/// What became of a request before its legs.
pub(super) enum Rendered {
    /// The legs can run, on token ids if it went through a renderer.
    Request(Parsed),
    /// The client gets this.
    Answered(Answer),
}

/// Has a renderer serve what one can serve, if there is any, and turns what goes through renderers into
/// token ids.
pub(super) async fn run(app: &App, parsed: Parsed, account: &mut Account) -> Result<Rendered, Error> {
    if parsed.renders && app.fleet.snapshot().renderers().next().is_some() {
        return pass(app, &parsed, account).await.map(Rendered::Answered);
    }
    match Dialect::of(&parsed.client.endpoint).filter(|dialect| goes_through(app, &parsed, *dialect)) {
        Some(dialect) => through(app, parsed, dialect, account).await,
        None => Ok(Rendered::Request(parsed)),
    }
}

/// Passes a request to a renderer and its answer back.
async fn pass(app: &App, parsed: &Parsed, account: &mut Account) -> Result<Answer, Error> {
    let (method, uri) = (parsed.method.clone(), parsed.uri.clone());
    let body = splice(&parsed.client.object, &PRIVATE_FIELDS.map(|name| Edit::Remove(name.into())));
    let headers = parsed.headers_of_leg(account.id(), None);
    let request = LegRequest { method, uri, headers, body, repeatable: true };
    let said = ask(account, Renderers::of(app).ask(request)).await?;
    let body = if said.head.status.is_success() { scrubbed(said.body).0 } else { said.body };
    Ok(hint::of_renderer(Answer::whole(said.head, body)))
}

/// The request as token ids.
async fn through(
    app: &App,
    parsed: Parsed,
    dialect: Dialect,
    account: &mut Account,
) -> Result<Rendered, Error> {
    let headers = parsed.headers_of_leg(account.id(), None);
    let mut edits: Vec<Edit> = PRIVATE_FIELDS.map(|name| Edit::Remove(name.into())).into();
    edits.push(Edit::Remove(MM_PAYLOAD.into()));
    let request = splice(&parsed.client.object, &edits).to_bytes();
    let renderers = Renderers::of(app);
    let asked = renderers.post(dialect.render(), &headers, request.clone().into());
    let said = ask(account, asked).await?;
    if !said.head.status.is_success() {
        return Ok(Rendered::Answered(hint::of_renderer(Answer::whole(said.head, said.body))));
    }
    let object = usable(&said.body, dialect).map_err(RenderError::Unusable)?;
    let way_back = WayBack::new(dialect, request, &object, headers).map_err(RenderError::Unusable)?;
    Ok(Rendered::Request(on_token_ids(app, parsed, object, way_back)))
}

async fn ask(
    account: &mut Account,
    asked: impl Future<Output = Result<Said, RenderError>>,
) -> Result<Said, Error> {
    let started = Instant::now();
    let said = asked.await?;
    account.rendered(said.by.address(), started.elapsed());
    Ok(said)
}

/// Whether a request goes through a renderer: the operator wants it, and the client's answer can be made of
/// token ids alone.
fn goes_through(app: &App, parsed: &Parsed, dialect: Dialect) -> bool {
    let object = &parsed.client.object;
    app.config.through_render.covers(object.get_str("model").as_deref())
        && needs_text(object, dialect).is_none()
}

/// Why the engine itself must see the client's request, if it must.
fn needs_text(object: &Object, dialect: Dialect) -> Option<&'static str> {
    if object.is_truthy("stop") || object.is_truthy("include_stop_str_in_output") {
        return Some("stop strings end an answer within a token");
    }
    if object.is_set("logprobs") && (dialect == Dialect::Completion || object.is_truthy("logprobs")) {
        return Some("log probabilities come back in another shape");
    }
    if object.is_truthy("return_token_ids") || object.is_truthy("return_tokens_as_token_ids") {
        return Some("token ids in the answer");
    }
    if object.is_truthy("use_beam_search") || number(object, "best_of").is_some_and(|n| n > 1.0) {
        return Some("beam search");
    }
    if object.is_truthy("echo") || object.is_set("prompt_logprobs") || object.is_set("prompt_embeds") {
        return Some("the prompt in the answer, or no text in the prompt");
    }
    object.get("prompt").is_some_and(|prompt| prompts(prompt) > 1).then_some("several prompts")
}

/// The one request that a renderer has made, as an engine can take it.
fn usable(body: &Bytes, dialect: Dialect) -> Result<Object, &'static str> {
    let text = match dialect {
        Dialect::Chat => body.clone(),
        Dialect::Completion => {
            let list: Vec<&RawValue> = serde_json::from_slice(body).map_err(|_| "it is no list")?;
            let [one] = list.as_slice() else { return Err("it is not one prompt") };
            body.slice_ref(one.get().as_bytes())
        }
    };
    let object = Object::scan(text).map_err(|_| "it is no JSON object")?;
    if !object.get("token_ids").is_some_and(|ids| ids.starts_with('[') && object.is_truthy("token_ids")) {
        return Err("it has no token ids");
    }
    if lacks_media(&object) {
        return Err("what was made of its media is missing");
    }
    let sampling = nested(&object, "sampling_params").ok_or("it has no sampling parameters")?;
    if sampling.is_set("max_tokens") {
        return Ok(object);
    }
    let limit = [Edit::Set { name: "max_tokens".into(), value: DEFAULT_MAX_TOKENS.into() }];
    let sampling = splice(&sampling, &limit).to_bytes();
    let value = String::from_utf8_lossy(&sampling).into_owned().into();
    let limited = splice(&object, &[Edit::Set { name: "sampling_params".into(), value }]).to_bytes();
    Object::scan(limited).map_err(|_| "it is no JSON object")
}

fn nested(object: &Object, name: &str) -> Option<Object> {
    Object::scan(object.bytes().slice_ref(object.get(name)?.as_bytes())).ok()
}

fn lacks_media(object: &Object) -> bool {
    nested(object, "features").is_some_and(|features| !features.is_set("kwargs_data"))
}

/// The request as its legs see it.
fn on_token_ids(app: &App, parsed: Parsed, object: Object, way_back: WayBack) -> Parsed {
    let two_legs = !runs_alone(GENERATE, &object);
    let mut client = ClientRequest::new(
        GENERATE.to_owned(),
        parsed.client.headers.clone(),
        object,
        app.config.prefix_block_tokens,
        Arc::clone(&app.config.session_keys),
    );
    client.unrendered = Some(parsed.client.object.clone());
    Parsed {
        client: Arc::new(client),
        uri: Uri::from_static(GENERATE),
        two_legs,
        turn: None,
        // The renderer has seen to them.
        media: Vec::new(),
        way_back: Some(Arc::new(way_back)),
        ..parsed
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
