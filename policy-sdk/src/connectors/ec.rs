//! Encodings of media, from the encoder that made them to whoever computes the
//! prompt (engine contract §7).
//!
//! An encoder's answer has one entry for each feature that it has encoded, under
//! the feature's hash. What it says there of itself (peer, port, size, …) is
//! handed on as it was written; its metadata take the place of the item in the
//! conversation, so that the prompt can be laid out without the pixels.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::params::Params;

/// What an item is. In an encoder's answer and in the consumer's request it has
/// the same name, but for the endings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Modality {
    /// `image_url`.
    Image,
    /// `audio_url` or `input_audio`.
    Audio,
    /// `video_url`.
    Video,
}

impl Modality {
    /// Of a content part with this `type`; `None` if it is no media item.
    pub fn of(part_type: &str) -> Option<Self> {
        match part_type {
            "image_url" => Some(Self::Image),
            "audio_url" | "input_audio" => Some(Self::Audio),
            "video_url" => Some(Self::Video),
            _ => None,
        }
    }

    /// `type` of the part that stands for an encoded item.
    fn embeds(self) -> &'static str {
        match self {
            Self::Image => "image_embeds",
            Self::Audio => "audio_embeds",
            Self::Video => "video_embeds",
        }
    }
}

/// One feature that an encoder has encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// The engines' key of it.
    hash: String,
    /// The whole entry, as the encoder wrote it.
    handle: String,
    /// JSON object of what lays out its place in the prompt; `None` if the
    /// encoder has not said.
    metadata: Option<String>,
    /// JSON string; only where the encoder pushes.
    transfer_id: Option<String>,
}

impl Encoding {
    /// It was to be pushed under this id, unless the encoder has said another.
    pub fn pushed_as(&mut self, transfer_id: &str) {
        self.transfer_id.get_or_insert_with(|| quoted(transfer_id));
    }
}

/// Why the answer of an encoder can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodingError {
    /// It is not what it should be.
    #[error("the encodings are no JSON object of objects")]
    Shape,
    /// A position that is no integer, or that of no item.
    #[error("item index {0} is not that of an item")]
    Index(String),
    /// Two entries for one position.
    #[error("item index {0} is named twice")]
    Twice(usize),
    /// No entry for an item, though there are some.
    #[error("item {0} has no encoding")]
    Unmatched(usize),
}

/// The encodings of each of the items that an encoder was sent together, by
/// its `ec_transfer_params`. `uuids` are the items' names, in the order of the
/// items. Several items have one encoding each, which is found by
/// `item_indices`, else by the name; all encodings of a single item that is not
/// found by its name are its features. Nobody has one if there is none at all.
///
/// # Errors
///
/// [`EncodingError`] where it can't be told which encoding is whose.
pub fn encodings(params: &str, uuids: &[&str]) -> Result<Vec<Vec<Encoding>>, EncodingError> {
    let params = Params::parse(params).map_err(|_| EncodingError::Shape)?;
    let entries = params.entries().map(|(hash, text)| Entry::read(hash, text));
    let entries = entries.collect::<Result<Vec<_>, _>>()?;
    if entries.is_empty() {
        return Ok(vec![Vec::new(); uuids.len()]);
    }
    let by_index = by_index(&entries, uuids.len())?;
    let by_name = |uuid: &str| entries.iter().find(|entry| entry.encoding.hash == uuid);
    if let [uuid] = uuids {
        let of_it = match by_name(uuid) {
            Some(entry) => vec![entry.encoding.clone()],
            None => entries.iter().map(|entry| entry.encoding.clone()).collect(),
        };
        return Ok(vec![of_it]);
    }
    let found = uuids.iter().zip(by_index).enumerate().map(|(at, (uuid, indexed))| {
        let entry = indexed.or_else(|| by_name(uuid)).ok_or(EncodingError::Unmatched(at))?;
        Ok(vec![entry.encoding.clone()])
    });
    found.collect()
}

/// One entry of an encoder's answer.
#[derive(Debug)]
struct Entry {
    encoding: Encoding,
    /// JSON texts.
    indices: Vec<String>,
}

impl Entry {
    fn read(hash: &str, text: &str) -> Result<Self, EncodingError> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            #[serde(borrow, default)]
            metadata: Option<&'a RawValue>,
            #[serde(borrow, default)]
            item_indices: Option<Vec<&'a RawValue>>,
            #[serde(borrow, default)]
            transfer_id: Option<&'a RawValue>,
        }
        let is_object = text.starts_with('{');
        let fields = serde_json::from_str::<Fields<'_>>(text).ok().filter(|_| is_object);
        let fields = fields.ok_or(EncodingError::Shape)?;
        let metadata = fields.metadata.map(RawValue::get).filter(|text| *text != "null");
        let encoding = Encoding {
            hash: hash.to_owned(),
            handle: text.to_owned(),
            metadata: metadata.map(flattened).transpose()?.flatten(),
            transfer_id: fields.transfer_id.map(|id| id.get().to_owned()).filter(|id| id != "null"),
        };
        let indices = fields.item_indices.unwrap_or_default();
        Ok(Self { encoding, indices: indices.iter().map(|index| index.get().to_owned()).collect() })
    }
}

/// The entry that names each of `count` positions. Features of a single item
/// all name the same one.
fn by_index(entries: &[Entry], count: usize) -> Result<Vec<Option<&Entry>>, EncodingError> {
    let mut places = vec![None; count];
    for entry in entries {
        for text in &entry.indices {
            let index = text.parse::<usize>().ok().filter(|index| *index < count);
            let index = index.ok_or_else(|| EncodingError::Index(text.clone()))?;
            if places[index].replace(entry).is_some() && count > 1 {
                return Err(EncodingError::Twice(index));
            }
        }
    }
    Ok(places)
}

/// The metadata of an item, each of whose lists has a row for each item of a
/// batch of one: the rows' values in one list. `None` if there are none.
fn flattened(metadata: &str) -> Result<Option<String>, EncodingError> {
    let metadata = Params::parse(metadata).map_err(|_| EncodingError::Shape)?;
    let fields = metadata.entries().map(|(name, value)| Ok(format!("{}:{}", quoted(name), rows(value)?)));
    let fields = fields.collect::<Result<Vec<_>, EncodingError>>()?;
    Ok((!fields.is_empty()).then(|| format!("{{{}}}", fields.join(","))))
}

/// A list of lists as one list; anything else as it is.
fn rows(value: &str) -> Result<String, EncodingError> {
    let Some(outer) = list(value)? else { return Ok(value.to_owned()) };
    let mut values = Vec::new();
    for row in outer {
        match list(row.get())? {
            Some(inner) => values.extend(inner.iter().map(|value| value.get())),
            None => values.push(row.get()),
        }
    }
    Ok(format!("[{}]", values.join(",")))
}

/// The values of a list; `None` for anything else.
fn list(text: &str) -> Result<Option<Vec<&RawValue>>, EncodingError> {
    if !text.starts_with('[') {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).map_err(|_| EncodingError::Shape)
}

/// The content part that stands for an item, by its encodings and its name.
/// `None` if its place in the prompt can't be laid out by them: then the item
/// itself must be sent.
pub fn reference(modality: Modality, encodings: &[Encoding], uuid: &str) -> Option<String> {
    let [encoding] = encodings else { return None };
    let (embeds, metadata) = (modality.embeds(), encoding.metadata.as_deref()?);
    Some(format!(r#"{{"type":"{embeds}","{embeds}":{metadata},"uuid":{}}}"#, quoted(uuid)))
}

/// `ec_transfer_params` for the consumer of all these encodings: the handle of
/// each by its hash, and `ec_items` with those that are pushed. `None` if there
/// are none.
pub fn transfer_params<'a>(encodings: impl IntoIterator<Item = &'a Encoding>) -> Option<String> {
    let mut known = HashSet::new();
    let all = encodings.into_iter().filter(|encoding| known.insert(encoding.hash.as_str()));
    let all: Vec<&Encoding> = all.collect();
    let mut fields: Vec<String> =
        all.iter().map(|encoding| format!("{}:{}", quoted(&encoding.hash), encoding.handle)).collect();
    let pushed = all.iter().filter_map(|encoding| {
        let (hash, id) = (quoted(&encoding.hash), encoding.transfer_id.as_deref()?);
        Some(format!(r#"{{"mm_hash":{hash},"transfer_id":{id}}}"#))
    });
    let pushed: Vec<String> = pushed.collect();
    if !pushed.is_empty() {
        fields.push(format!(r#""ec_items":[{}]"#, pushed.join(",")));
    }
    (!fields.is_empty()).then(|| format!("{{{}}}", fields.join(",")))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests;
