//! An engine that encodes media and generates nothing (engine contract §7): what it answers, what it keeps until a
//! consumer comes for it, and what strict mode objects to.
//!
//! A URL that ends in `.broken` is refused; one that ends in `.plain` is encoded, but its layout is not told.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::body::SimBody;
use super::fields::Fields;
use super::media::{Media, mm_hash, source};
use super::rejection::{Rejection, json_response};
use super::route::Service;
use crate::client::Client;
use crate::lock::lock;

/// Where consumers come for encodings.
pub(crate) const TAKE: &str = "/sim/encodings/take";

/// Where encoders push encodings to.
pub(crate) const PUSH: &str = "/sim/encodings/push";

/// Fields that an encoder may be sent.
const KNOWN: [&str; 8] = [
    "model",
    "messages",
    "stream",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "priority",
    "session_id",
    "ec_transfer_params",
];

/// What an encoder keeps.
#[derive(Default)]
pub(crate) struct Encodings {
    /// What each shows, and how many requests have asked for it and not fetched it.
    kept: Mutex<HashMap<String, (String, usize)>>,
    /// What encoders have pushed to a rank, by the transfer's id.
    pushed: Mutex<HashMap<(u64, String), String>>,
    /// The name under which each item came first: by its content, never by the request.
    names: Mutex<HashMap<String, String>>,
}

impl Encodings {
    pub(crate) fn clear(&self) {
        lock(&self.kept).clear();
        lock(&self.pushed).clear();
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.kept).values().map(|(_, count)| count).sum::<usize>() + lock(&self.pushed).len()
    }

    fn keep(&self, hash: &str, content: &str) {
        let mut kept = lock(&self.kept);
        kept.entry(hash.to_owned()).or_insert_with(|| (content.to_owned(), 0)).1 += 1;
    }

    /// Takes in what an encoder pushes.
    pub(crate) fn push(&self, rank: u64, transfer_id: &str, hash: &str) {
        lock(&self.pushed).insert((rank, transfer_id.to_owned()), hash.to_owned());
    }

    /// Uses up what was pushed to this rank, if it is what it should be.
    pub(crate) fn use_pushed(&self, rank: u64, transfer_id: &str, hash: &str) -> Option<()> {
        let found = lock(&self.pushed).remove(&(rank, transfer_id.to_owned()))?;
        (found == hash).then_some(())
    }

    /// Gives one away.
    pub(crate) fn take(&self, hash: &str) -> Option<String> {
        let mut kept = lock(&self.kept);
        let (content, count) = kept.get_mut(hash)?;
        let content = content.clone();
        *count -= 1;
        if *count == 0 {
            kept.remove(hash);
        }
        Some(content)
    }
}

/// Answers a request to encode.
pub(crate) async fn encode(service: &Service, headers: &HeaderMap, body: &Bytes) -> Response<SimBody> {
    let id = headers.get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
    if service.config.strict {
        let body = serde_json::from_slice(body).unwrap_or_default();
        service.violations.add(violations(&service.encodings, id, &body));
    }
    match answer(service, headers, body, id).await {
        Ok(answer) => json_response(StatusCode::OK, &answer),
        Err(rejection) => rejection.respond(),
    }
}

async fn answer(service: &Service, headers: &HeaderMap, body: &Bytes, id: &str) -> Result<Value, Rejection> {
    let fields = Fields::parse(headers, body)?;
    let model = fields.text("model").unwrap_or(&service.config.model);
    if model != service.config.model {
        return Err(Rejection::no_such_model(model, &service.config.model));
    }
    let messages = fields.list("messages")?.cloned().ok_or_else(|| fields.missing("messages"))?;
    let parts = parts(&messages);
    // All of them, before anything is kept.
    for part in &parts {
        if url_ends(part, ".broken") {
            return Err(Rejection::bad_request("Failed to load the media: cannot identify the file."));
        }
    }
    let destination = fields.get("ec_transfer_params");
    let mut params = Map::new();
    for (index, part) in parts.iter().enumerate() {
        let media =
            Media::of(part).ok_or_else(|| Rejection::bad_request("This engine encodes media only."))?;
        let uuid = part.get("uuid").and_then(Value::as_str).unwrap_or(&media.content);
        if let Some(destination) = destination {
            push(destination, index, &mm_hash(uuid)).await.ok_or_else(Rejection::internal)?;
        }
        let entry = params.entry(mm_hash(uuid)).or_insert_with(|| {
            if destination.is_none() {
                service.encodings.keep(&mm_hash(uuid), &media.content);
            }
            entry(service, &media, url_ends(part, ".plain"))
        });
        if let Some(indices) = entry["item_indices"].as_array_mut() {
            indices.push(json!(index));
        }
    }
    Ok(json!({
        "id": format!("chatcmpl-{id}"), "object": "chat.completion", "model": model,
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": "" }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 0, "total_tokens": 1 },
        "kv_transfer_params": null, "ec_transfer_params": params,
    }))
}

/// Pushes the encoding of item `index` to the consumer that it was told of, at `tcp://host:port/rank`.
async fn push(destination: &Value, index: usize, hash: &str) -> Option<()> {
    let (address, rank) = destination["consumer_zmq"].as_str()?.strip_prefix("tcp://")?.split_once('/')?;
    let rank: u64 = rank.parse().ok()?;
    let id = destination["ec_items"][index]["transfer_id"].as_str()?;
    let body = json!({ "rank": rank, "transfer_id": id, "mm_hash": hash });
    let answer = Client::new(address).post_json(PUSH, &body).await.ok()?;
    (answer.status == 200).then_some(())
}

/// What is told of one feature; each list of the layout has a row for each item of a batch of one.
fn entry(service: &Service, media: &Media, plain: bool) -> Value {
    let rows = |(name, value): (&String, &Value)| (name.clone(), json!([value]));
    let metadata: Map<String, Value> = media.layout.iter().map(rows).collect();
    json!({
        "metadata": if plain { Value::Null } else { json!(metadata) },
        "modality": media.modality, "item_indices": [],
        "peer_host": service.address.ip().to_string(), "peer_port": service.address.port(),
        "size_bytes": 4096, "sim_content": media.content,
    })
}

fn parts(messages: &[Value]) -> Vec<Value> {
    let contents = messages.iter().filter_map(|message| message.get("content")?.as_array());
    contents.flatten().cloned().collect()
}

fn url_ends(part: &Value, ending: &str) -> bool {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    source(part, kind).is_some_and(|source| source.ends_with(ending))
}

/// What is wrong with a request to encode, one sentence each.
fn violations(encodings: &Encodings, id: &str, body: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut object = |what: String| found.push(format!("an encoder was sent {what}"));
    for name in
        body.as_object().into_iter().flat_map(Map::keys).filter(|name| !KNOWN.contains(&name.as_str()))
    {
        object(name.clone());
    }
    if body.get("stream") != Some(&Value::Bool(false)) {
        object(format!("stream = {:?}", body.get("stream")));
    }
    let random = |text: &str| text.len() == 6 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut id_parts = id.rsplit(':');
    if !(id_parts.next().is_some_and(random)
        && id_parts.next().is_some_and(|first| first.parse::<usize>().is_ok())
        && id_parts.next().is_some_and(|parent| !parent.is_empty()))
    {
        object(format!("the request id {id:?}"));
    }
    let messages = body.get("messages").and_then(Value::as_array).cloned().unwrap_or_default();
    if messages.len() != 1 || messages.iter().any(|message| message.get("role") != Some(&json!("user"))) {
        object("something other than one message of the user".to_owned());
    }
    let parts = parts(&messages);
    if parts.len() > 1 && parts.iter().any(|part| part["type"] != "image_url") {
        object("several items that are not all images".to_owned());
    }
    for part in &parts {
        match (Media::of(part), part.get("uuid").and_then(Value::as_str)) {
            (Some(media), Some(uuid)) => {
                let mut names = lock(&encodings.names);
                let first = names
                    .entry(media.modality.to_owned() + &media.content)
                    .or_insert_with(|| uuid.to_owned());
                if first != uuid {
                    object(format!("one item under two names, {first} and {uuid}"));
                }
            }
            _ => object(format!("{part}, which is no item with a name")),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(part: &Value) -> Value {
        json!({ "model": "sim", "stream": false, "messages": [{ "role": "user", "content": [part] }] })
    }

    #[test]
    fn a_proper_request_is_no_violation() {
        let part = json!({ "type": "image_url", "image_url": { "url": "a" }, "uuid": "u" });
        assert_eq!(violations(&Encodings::default(), "id:0:12ab3f", &body(&part)), [""; 0]);
    }

    #[test]
    fn each_wrong_thing_is_named() {
        let part = json!({ "type": "image_url", "image_url": { "url": "a" }, "uuid": "u" });
        let found = |id: &str, body: &Value| violations(&Encodings::default(), id, body).len();
        let mut wrong = body(&part);
        wrong["max_tokens"] = json!(1);
        wrong["stream"] = json!(true);
        assert_eq!(found("id", &wrong), 3);
        let text = json!({ "type": "text", "text": "x" });
        assert_eq!(found("id:0:12ab3f", &body(&text)), 1);
        let names = Encodings::default();
        assert_eq!(violations(&names, "a:0:12ab3f", &body(&part)).len(), 0);
        let other = json!({ "type": "image_url", "image_url": { "url": "a" }, "uuid": "a:0" });
        assert_eq!(violations(&names, "a:0:12ab3f", &body(&other)).len(), 1);
    }

    #[test]
    fn an_encoding_is_given_away_as_often_as_it_was_asked_for() {
        let encodings = Encodings::default();
        encodings.keep("h", "c");
        encodings.keep("h", "c");
        assert_eq!((encodings.len(), encodings.take("h").as_deref()), (2, Some("c")));
        assert!(encodings.take("h").is_some() && encodings.take("h").is_none());
    }
}
