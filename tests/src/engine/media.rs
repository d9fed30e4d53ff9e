//! Media in a chat: what a model sees of them, raw or encoded, and how a consumer gets encodings (engine contract §7).
//!
//! A placeholder says what an item shows and how it is laid out. Of a raw item the engine finds both by itself. Of an
//! encoded one it is told the layout, and finds the content by the hash of the name that it is told: with another
//! item's layout or name, the text is another.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Map, Value, json};

use super::digest::mix_text;
use super::encoder::TAKE;
use super::rejection::Rejection;
use super::route::Service;
use crate::client::Client;

/// Key of a part that a consumer has fetched the encoding of.
const FETCHED: &str = "sim_fetched";

/// One item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Media {
    pub(crate) modality: &'static str,
    /// Hash of what it shows.
    pub(crate) content: String,
    /// As an encoder tells it, without the rows of a batch.
    pub(crate) layout: Map<String, Value>,
}

impl Media {
    /// The item in a content part, if it is a raw one, or one whose encoding was fetched.
    pub(crate) fn of(part: &Value) -> Option<Self> {
        let kind = part.get("type")?.as_str()?;
        let modality = match kind {
            "image_url" | "image_embeds" => "image",
            "audio_url" | "input_audio" | "audio_embeds" => "audio",
            "video_url" | "video_embeds" => "video",
            _ => return None,
        };
        if let Some(fetched) = part.get(FETCHED) {
            let layout = part.get(kind)?.as_object()?.clone();
            return Some(Self { modality, content: fetched.as_str()?.to_owned(), layout });
        }
        let source = source(part, kind)?;
        let content = format!("{:016x}", mix_text(11, &source));
        let side = |salt: u64| mix_text(salt, &source) % 30 + 1;
        let layout = match modality {
            "image" => json!({ "image_grid_thw": [1, side(1), side(2)] }),
            "video" => json!({ "video_grid_thw": [side(1), side(2), side(3)], "second_per_grid_ts": [0.5] }),
            _ => json!({ "audio_feature_lengths": [side(1)] }),
        };
        Some(Self { modality, content, layout: layout.as_object()?.clone() })
    }

    pub(crate) fn placeholder(&self) -> String {
        format!("<{} {} {}>", self.modality, self.content, json!(self.layout))
    }
}

/// The item's URL, or all of it without its name.
pub(crate) fn source(part: &Value, kind: &str) -> Option<String> {
    if kind.ends_with("_embeds") {
        return None;
    }
    if let Some(url) = part.get(kind).and_then(|inner| inner.get("url")).and_then(Value::as_str) {
        return Some(url.to_owned());
    }
    let mut anonymous = part.clone();
    anonymous.as_object_mut()?.remove("uuid");
    Some(anonymous.to_string())
}

/// The engines' hash of an item's name.
pub(crate) fn mm_hash(uuid: &str) -> String {
    format!("mm-{:016x}", mix_text(13, uuid))
}

/// The request with the content of its encoded items in it. Whoever computes the prompt fetches them, each once;
/// whoever gets the KV cache has no need to.
///
/// # Errors
/// 500 if an encoding is not where it should be.
pub(crate) async fn fetch(service: &Service, headers: &HeaderMap, body: &Bytes) -> Result<Bytes, Rejection> {
    let Ok(mut request) = serde_json::from_slice::<Value>(body) else { return Ok(body.clone()) };
    let handles = request.get("ec_transfer_params").cloned().unwrap_or_default();
    let rank = headers.get("x-data-parallel-rank").and_then(|rank| rank.to_str().ok()?.parse().ok());
    let loads = request.pointer("/kv_transfer_params/do_remote_prefill") == Some(&Value::Bool(true));
    let mut taken = Vec::new();
    for part in parts(&mut request) {
        let embeds = part.get("type").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("_embeds"));
        if !embeds {
            continue;
        }
        let Some(uuid) = part.get("uuid").and_then(Value::as_str) else {
            service.violations.add(vec![format!("a consumer was sent {part}, which has no name")]);
            return Err(Rejection::internal());
        };
        let hash = mm_hash(uuid);
        let handle = &handles[&hash];
        let content = handle["sim_content"].as_str().ok_or_else(Rejection::internal)?.to_owned();
        if !loads && !taken.contains(&hash) {
            let items = handles["ec_items"].as_array().into_iter().flatten();
            let pushed = items.into_iter().find(|item| item["mm_hash"] == hash.as_str());
            let found = match pushed.and_then(|item| item["transfer_id"].as_str()) {
                Some(id) => service.encodings.use_pushed(rank.unwrap_or(0), id, &hash),
                None => take(handle, &hash).await,
            };
            found.ok_or_else(Rejection::internal)?;
            taken.push(hash);
        }
        part[FETCHED] = Value::String(content);
    }
    Ok(Bytes::from(request.to_string()))
}

/// Fetches an encoding from the encoder that the handle names.
async fn take(handle: &Value, hash: &str) -> Option<()> {
    let address = format!("{}:{}", handle["peer_host"].as_str()?, handle["peer_port"].as_u64()?);
    let answer = Client::new(&address).post_json(TAKE, &json!({ "mm_hash": hash })).await.ok()?;
    (answer.status == 200).then_some(())
}

fn parts(request: &mut Value) -> impl Iterator<Item = &mut Value> {
    let messages = request.get_mut("messages").and_then(Value::as_array_mut);
    messages
        .into_iter()
        .flatten()
        .filter_map(|message| message.get_mut("content").and_then(Value::as_array_mut))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_change_what_an_item_shows_and_an_encoded_item_shows_the_same() {
        for raw in [
            json!({ "type": "image_url", "image_url": { "url": "a" } }),
            json!({ "type": "input_audio", "input_audio": { "data": "AA" } }),
            json!({ "type": "video_url", "video_url": { "url": "a" } }),
        ] {
            let media = Media::of(&raw).unwrap();
            let mut named = raw.clone();
            named["uuid"] = json!("u");
            assert_eq!(Media::of(&named).unwrap(), media);
            let kind = format!("{}_embeds", media.modality);
            let encoded = json!({ "type": kind, kind.as_str(): media.layout, FETCHED: media.content });
            assert_eq!(Media::of(&encoded).unwrap().placeholder(), media.placeholder());
        }
    }

    #[test]
    fn what_is_no_item_is_none() {
        for part in [json!({ "type": "text", "text": "x" }), json!(7), json!({ "type": "image_embeds" })] {
            assert_eq!(Media::of(&part), None);
        }
    }
}
