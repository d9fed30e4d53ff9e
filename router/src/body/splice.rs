//! Applies edits to the top-level fields of an object: what no edit names stays as it was, byte for
//! byte, and big values are shared instead of copied.

use std::collections::HashSet;

use bytes::{Bytes, BytesMut};
use edge_router_policy::Edit;
use serde_json::value::RawValue;
use thiserror::Error;

use super::scan::Object;

/// Bodies up to this many bytes are written into one buffer: a copy of 16 KiB costs less than the
/// extra segments do on their way to the socket.
const COPY_BELOW: usize = 16 * 1024;

/// Values of one leg's edits together; far above any connector's parameters, far below what would
/// let a policy fill the memory.
pub const MAX_EDIT_BYTES: usize = 1024 * 1024;

/// Edits of one leg.
pub const MAX_EDITS: usize = 256;

/// Why a list of edits was refused. The fault is the policy's, never the client's.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum EditError {
    /// The value of a `set` is not exactly one JSON value.
    #[error("edit of '{name}' is not a JSON value: {reason}")]
    NotJson {
        /// Field named by the edit.
        name: String,
        /// serde_json's message.
        reason: String,
    },
    /// More than [`MAX_EDITS`] edits.
    #[error("{0} edits; at most {MAX_EDITS} are allowed")]
    TooMany(usize),
    /// More than [`MAX_EDIT_BYTES`] bytes.
    #[error("edits of {0} bytes; at most {MAX_EDIT_BYTES} are allowed")]
    TooLarge(usize),
}

/// A body as the pieces to be written one after the other.
#[derive(Debug, Clone, Default)]
pub struct Segments(Vec<Bytes>);

impl Segments {
    /// Length of all pieces together, for `content-length`.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces.
    pub fn into_inner(self) -> Vec<Bytes> {
        self.0
    }

    /// All pieces in one buffer.
    pub fn to_bytes(&self) -> Bytes {
        match self.0.as_slice() {
            [one] => one.clone(),
            many => {
                let mut out = BytesMut::with_capacity(self.len());
                many.iter().for_each(|s| out.extend_from_slice(s));
                out.freeze()
            }
        }
    }
}

impl FromIterator<Bytes> for Segments {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        Self(pieces.into_iter().filter(|piece| !piece.is_empty()).collect())
    }
}

impl From<Vec<Bytes>> for Segments {
    /// The pieces, in one buffer if they are short.
    fn from(pieces: Vec<Bytes>) -> Self {
        let segments = Self(pieces);
        if segments.0.len() > 1 && segments.len() <= COPY_BELOW {
            return segments.to_bytes().into();
        }
        segments
    }
}

impl From<Bytes> for Segments {
    fn from(bytes: Bytes) -> Self {
        Self(vec![bytes])
    }
}

/// Checks the limits and the JSON of `edits`.
///
/// # Errors
/// [`EditError`] names the first edit that is wrong.
pub fn check(edits: &[Edit]) -> Result<(), EditError> {
    if edits.len() > MAX_EDITS {
        return Err(EditError::TooMany(edits.len()));
    }
    let mut total = 0;
    for edit in edits {
        match edit {
            Edit::Remove(name) => total += name.len(),
            Edit::Set { name, value } => {
                total += name.len() + value.len();
                if total > MAX_EDIT_BYTES {
                    return Err(EditError::TooLarge(total));
                }
                serde_json::from_str::<&RawValue>(value)
                    .map_err(|e| EditError::NotJson { name: name.to_string(), reason: e.to_string() })?;
            }
        }
    }
    if total > MAX_EDIT_BYTES { Err(EditError::TooLarge(total)) } else { Ok(()) }
}

/// The object with `edits` applied, which [`check`] has accepted. Of several edits of one field the last counts; a field
/// that occurs more than once in the object ends up at most once.
pub fn splice(object: &Object, edits: &[Edit]) -> Segments {
    let text = object.bytes();
    let mut out = Writer { text, pieces: Vec::new(), pending: 0..object.body_start() };
    let mut empty = true;
    let mut written: HashSet<&str> = HashSet::new();
    for i in 0..object.len() {
        let (name, span, value) = object.member(i);
        let edit = edits.iter().rev().find(|e| edit_name(e) == name);
        let is_last = edit.is_none() || !(i + 1..object.len()).any(|j| object.member(j).0 == name);
        match edit {
            Some(Edit::Remove(_)) => continue,
            Some(Edit::Set { .. }) if !is_last => continue,
            _ => {}
        }
        // The first member that stays must not bring the comma of the ones that went.
        let start = if empty { skip_comma(text, span.start) } else { span.start };
        empty = false;
        match edit {
            Some(Edit::Set { name, value: new }) => {
                written.insert(name);
                out.original(start..value.start);
                out.insert(Bytes::copy_from_slice(new.as_bytes()));
            }
            _ => out.original(start..span.end),
        }
    }
    append_absent(&mut out, edits, &written, &mut empty);
    let tail = if object.is_empty() { object.body_start() } else { object.member(object.len() - 1).1.end };
    out.original(tail..text.len());
    out.finish()
}

fn edit_name(edit: &Edit) -> &str {
    match edit {
        Edit::Set { name, .. } | Edit::Remove(name) => name,
    }
}

/// Appends the fields that are set but were not there, each once, with its last value.
fn append_absent(out: &mut Writer<'_>, edits: &[Edit], written: &HashSet<&str>, empty: &mut bool) {
    for (i, edit) in edits.iter().enumerate() {
        let Edit::Set { name, value } = edit else { continue };
        let overruled = edits[i + 1..].iter().any(|later| edit_name(later) == name);
        if overruled || written.contains(&**name) {
            continue;
        }
        let mut piece = Vec::with_capacity(name.len() + value.len() + 4);
        if !std::mem::take(empty) {
            piece.push(b',');
        }
        piece.extend_from_slice(serde_json::Value::from(&**name).to_string().as_bytes());
        piece.push(b':');
        piece.extend_from_slice(value.as_bytes());
        out.insert(piece.into());
    }
}

/// The start of a member without the comma in front of it.
fn skip_comma(text: &[u8], start: usize) -> usize {
    let spaces = text[start..].iter().take_while(|b| b.is_ascii_whitespace()).count();
    if text.get(start + spaces) == Some(&b',') { start + spaces + 1 } else { start }
}

/// Collects ranges of the original and inserted pieces, joining ranges that touch.
struct Writer<'a> {
    text: &'a Bytes,
    pieces: Vec<Bytes>,
    pending: std::ops::Range<usize>,
}

impl Writer<'_> {
    fn original(&mut self, range: std::ops::Range<usize>) {
        if self.pending.end == range.start {
            self.pending.end = range.end;
        } else {
            self.flush();
            self.pending = range;
        }
    }

    fn insert(&mut self, piece: Bytes) {
        self.flush();
        self.pieces.push(piece);
    }

    fn flush(&mut self) {
        let range = std::mem::replace(&mut self.pending, 0..0);
        if !range.is_empty() {
            self.pieces.push(self.text.slice(range));
        }
    }

    fn finish(mut self) -> Segments {
        self.flush();
        self.pieces.into()
    }
}

#[cfg(test)]
#[path = "splice_tests.rs"]
mod tests;
