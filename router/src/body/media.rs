//! Media in a conversation: where its images, audio clips and videos are, what they are called, and how
//! other parts take their place.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use edge_router_policy::Edit;
use edge_router_policy::connectors::ec::Modality;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::scan::Object;
use super::splice::{Segments, splice};

/// No model takes more; a body made of tiny ones would take many times its length here.
const MAX_ITEMS: usize = 1024;

/// Where the parts of each type have their content.
const URLS: [&str; 3] = ["image_url", "audio_url", "video_url"];

/// There are too many to look at.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("more than {MAX_ITEMS} media items")]
pub struct TooManyItems;

/// One content part that is an image, an audio clip or a video.
#[derive(Debug)]
pub struct MediaItem {
    /// What it is.
    pub modality: Modality,
    /// Where its text is in the body.
    pub span: Range<usize>,
    /// Its name: the client's, or a hash of its content, so that the same item has the same name in every
    /// request (engine contract §7).
    pub uuid: String,
    /// Whether the client has not named it.
    hashed: bool,
    part: Object,
}

impl MediaItem {
    /// The part at `span`, if it is a media item. What can't be read is the engines' business.
    fn read(body: &Object, text: &str) -> Option<Self> {
        // A string or a number costs no scan.
        let part = Some(text).filter(|text| text.starts_with('{'))?;
        let part = Object::scan(body.bytes().slice_ref(part.as_bytes())).ok()?;
        let modality = Modality::of(&part.get_str("type")?)?;
        let start = text.as_ptr().addr() - body.bytes().as_ptr().addr();
        let own = part.get_str("uuid").filter(|uuid| !uuid.is_empty());
        let hashed = own.is_none();
        let uuid = own.map_or_else(|| content_hash(&part), |uuid| uuid.into_owned());
        Some(Self { modality, span: start..start + text.len(), uuid, hashed, part })
    }

    /// The part, with its name in it. Its bytes are shared, not copied.
    pub fn named(&self) -> Segments {
        let uuid = Value::from(self.uuid.as_str()).to_string();
        if self.part.get("uuid").is_some_and(|own| own == uuid) {
            return self.part.bytes().clone().into();
        }
        splice(&self.part, &[Edit::Set { name: "uuid".into(), value: uuid.into() }])
    }
}

/// Hash of the item's URL, or of all of it if it has none.
fn content_hash(part: &Object) -> String {
    let of_url = URLS.iter().find_map(|name| {
        let inner = part.get(name).filter(|text| text.starts_with('{'))?;
        let inner = Object::scan(part.bytes().slice_ref(inner.as_bytes())).ok()?;
        let url = inner.get_str("url").filter(|url| !url.is_empty())?;
        Some(hex(&Sha256::digest(url.as_bytes())))
    });
    of_url.unwrap_or_else(|| whole_hash(part))
}

/// Hash of all of the item, with its fields in order.
fn whole_hash(part: &Object) -> String {
    hex(&match serde_json::from_slice::<Value>(part.bytes()) {
        Ok(value) => Sha256::digest(value.to_string()),
        // Such as a lone surrogate: then it has one spelling only.
        Err(_) => Sha256::digest(part.bytes()),
    })
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The media items of all `messages`, in their order.
///
/// # Errors
/// [`TooManyItems`].
pub fn items(body: &Object) -> Result<Vec<MediaItem>, TooManyItems> {
    let (mut items, mut names) = (Vec::new(), HashMap::new());
    for message in body.get("messages").map(list).unwrap_or_default() {
        if !message.get().starts_with('{') {
            continue;
        }
        let Ok(message) = Object::scan(body.bytes().slice_ref(message.get().as_bytes())) else { continue };
        for part in message.get("content").map(list).unwrap_or_default() {
            let Some(mut item) = MediaItem::read(body, part.get()) else { continue };
            // The sound of a video is another item than the video, though it is in the same file.
            let named = *names.entry(item.uuid.clone()).or_insert(item.modality);
            if named != item.modality && item.hashed {
                item.uuid = whole_hash(&item.part);
            }
            items.push(item);
            if items.len() > MAX_ITEMS {
                return Err(TooManyItems);
            }
        }
    }
    Ok(items)
}

/// The values of a list; none if it is something else.
fn list(text: &str) -> Vec<&RawValue> {
    if !text.starts_with('[') {
        return Vec::new();
    }
    serde_json::from_str(text).unwrap_or_default()
}

/// The body with other text in these places, which must be in order. The rest stays, byte for byte.
pub fn replaced(body: &Bytes, places: &[(Range<usize>, Bytes)]) -> Bytes {
    let removed: usize = places.iter().map(|(place, _)| place.len()).sum();
    let added: usize = places.iter().map(|(_, text)| text.len()).sum();
    let mut out = Vec::with_capacity(body.len() - removed + added);
    let mut copied = 0;
    for (place, text) in places {
        out.extend_from_slice(&body[copied..place.start]);
        out.extend_from_slice(text);
        copied = place.end;
    }
    out.extend_from_slice(&body[copied..]);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Object {
        Object::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn only(part: &str) -> MediaItem {
        let mut items = items(&body(&format!(r#"{{"messages":[{{"content":[{part}]}}]}}"#))).unwrap();
        assert_eq!(items.len(), 1, "{part}");
        items.remove(0)
    }

    #[test]
    fn items_are_found_in_any_message_and_nothing_else_is() {
        let text = r#"{"messages": [
            {"role": "system", "content": "image_url"}, 7, {"content": null},
            {"content": [ {"type":"text","text":"{\"type\":\"image_url\"}"}, {"type":"image_url","image_url":{"url":"a"}} ]},
            {"role": "user", "content": [{"type":"im\u0061ge_url"}, "x", {"type":7},
                {"input_audio":{"data":"AA==","format":"wav"},"type":"input_audio"}, {"type":"video_url"},
                {"type":"image_embeds"}]}
        ], "content": [{"type":"image_url"}]}"#;
        let object = body(text);
        let found: Vec<_> = items(&object)
            .unwrap()
            .into_iter()
            .map(|item| (item.modality, std::str::from_utf8(&object.bytes()[item.span]).unwrap().len()))
            .collect();
        let expected =
            [(Modality::Image, 44), (Modality::Image, 25), (Modality::Audio, 67), (Modality::Video, 20)];
        assert_eq!(found, expected);
        for none in [r#"{"messages":7}"#, r#"{"messages":[[]]}"#, "{}"] {
            assert!(items(&body(none)).unwrap().is_empty());
        }
    }

    #[test]
    fn a_name_is_the_clients_or_follows_from_the_content() {
        // sha256 of "a".
        let hash = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        let image = |inner: &str| only(&format!(r#"{{"type":"image_url","image_url":{inner}}}"#)).uuid;
        assert_eq!(image(r#"{"url":"a"}"#), hash);
        assert_eq!(image(r#"{"detail":"low","url":"\u0061"}"#), hash);
        assert_eq!(only(r#"{"type":"image_url","image_url":{"url":"a"},"uuid":null}"#).uuid, hash);
        assert_eq!(only(r#"{"type":"image_url","image_url":null,"uuid":"mine"}"#).uuid, "mine");
        let audio = |inner: &str| only(&format!(r#"{{"type":"input_audio","input_audio":{inner}}}"#)).uuid;
        assert_eq!(audio(r#"{"data":"AA","format":"wav"}"#), audio(r#"{ "format":"wav", "data":"A\u0041"}"#));
        assert_ne!(audio(r#"{"data":"AA"}"#), audio(r#"{"data":"AB"}"#));
        assert_eq!(audio(r#"{"data":"\ud800"}"#).len(), 64);
    }

    #[test]
    fn one_file_has_a_name_for_each_way_of_looking_at_it() {
        let part = |kind: &str| format!(r#"{{"type":"{kind}","{kind}":{{"url":"a"}}}}"#);
        let parts = ["video_url", "audio_url", "video_url", "audio_url"].map(part).join(",");
        let items = items(&body(&format!(r#"{{"messages":[{{"content":[{parts}]}}]}}"#))).unwrap();
        let names: Vec<&str> = items.iter().map(|item| item.uuid.as_str()).collect();
        assert_eq!((names[0], names[1]), (names[2], names[3]));
        assert_ne!(names[0], names[1]);
    }

    #[test]
    fn a_named_part_is_the_clients_otherwise() {
        let named = |part: &str| String::from_utf8(only(part).named().to_bytes().to_vec()).unwrap();
        let own = r#"{ "type":"video_url" ,"uuid":"u", "n":1.50}"#;
        assert_eq!(named(own), own);
        let hash = only(r#"{"type":"image_url","image_url":{"url":"a"}}"#).uuid;
        assert_eq!(
            named(r#"{"type":"image_url", "uuid":"", "image_url":{"url":"a","x":1e0}}"#),
            format!(r#"{{"type":"image_url", "uuid":"{hash}", "image_url":{{"url":"a","x":1e0}}}}"#)
        );
        assert_eq!(
            named(r#"{"type":"image_url","image_url":{"url":"a"}}"#),
            format!(r#"{{"type":"image_url","image_url":{{"url":"a"}},"uuid":"{hash}"}}"#)
        );
    }

    #[test]
    fn only_the_named_places_change() {
        let text = Bytes::from_static(b"{\"a\": 1.0, \"b\":[2]}");
        assert_eq!(replaced(&text, &[]), text);
        let places = [(6..9, Bytes::from_static(b"\"x\"")), (16..17, Bytes::new())];
        assert_eq!(replaced(&text, &places), "{\"a\": \"x\", \"b\":[]}");
    }

    #[test]
    fn the_number_of_items_is_bounded() {
        let many = |n: usize| {
            body(&format!(
                r#"{{"messages":[{{"content":[{}]}}]}}"#,
                vec![r#"{"type":"image_url"}"#; n].join(",")
            ))
        };
        assert_eq!(items(&many(MAX_ITEMS)).unwrap().len(), MAX_ITEMS);
        assert_eq!(items(&many(MAX_ITEMS + 1)).unwrap_err(), TooManyItems);
    }
}
