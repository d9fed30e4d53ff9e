//! Finds the top-level fields of a JSON object without building a tree.
//!
//! serde_json walks the text once and checks its syntax; nested values are skipped iteratively, so
//! that depth costs no stack. What is kept is a list of byte ranges into the original buffer.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;

/// Top-level fields of one object. No API has more than some hundred; a body made of millions of tiny
/// ones would take many times its length here, and every look-up of a name would walk through them.
const MAX_MEMBERS: usize = 4096;

/// One `"name": value` of the object.
#[derive(Debug, Clone)]
struct Member {
    name: Box<str>,
    /// From the end of the previous value (or the opening brace) to the end of this value: the comma,
    /// white space, name, colon and value.
    span: Range<usize>,
    value: Range<usize>,
}

/// A JSON object as its original bytes and the places of its top-level fields.
#[derive(Debug, Clone)]
pub struct Object {
    bytes: Bytes,
    members: Vec<Member>,
}

/// Why a body is not a JSON object.
#[derive(Debug, Error)]
pub enum ScanError {
    /// Not JSON, or JSON followed by something else. Line and column count from 1.
    #[error("body is not valid JSON: {0}")]
    Syntax(#[source] serde_json::Error),
    /// Valid JSON, but an array, a string, ….
    #[error("body must be a JSON object")]
    NotAnObject,
}

impl Object {
    /// Scans `bytes`, which must hold exactly one JSON object.
    ///
    /// # Errors
    /// [`ScanError`] if it holds anything else.
    pub fn scan(bytes: Bytes) -> Result<Self, ScanError> {
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            let other = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes);
            return Err(other.map_or_else(ScanError::Syntax, |_| ScanError::NotAnObject));
        }
        let mut deserializer = serde_json::Deserializer::from_slice(&bytes);
        let members = Members { text: &bytes }.deserialize(&mut deserializer).map_err(ScanError::Syntax)?;
        deserializer.end().map_err(ScanError::Syntax)?;
        Ok(Self { bytes, members })
    }

    /// `{}`.
    pub fn empty() -> Self {
        Self { bytes: Bytes::from_static(b"{}"), members: Vec::new() }
    }

    /// The whole text.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// JSON text of a field. Where a name occurs twice the last one counts, as it does in the
    /// engines' parser.
    pub fn get(&self, name: &str) -> Option<&str> {
        let member = self.members.iter().rev().find(|m| &*m.name == name)?;
        std::str::from_utf8(&self.bytes[member.value.clone()]).ok()
    }

    /// The field, if it is a string.
    pub fn get_str(&self, name: &str) -> Option<Cow<'_, str>> {
        serde_json::from_str::<BorrowedStr<'_>>(self.get(name)?).ok().map(|s| s.0)
    }

    /// Whether the field is there and Python takes it for true.
    pub fn is_truthy(&self, name: &str) -> bool {
        self.get(name).is_some_and(is_truthy)
    }

    /// Whether the field is there and not `null`.
    pub fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| v != "null")
    }

    /// Number of top-level members, repeated names included.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether the object is `{}`.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Name, span (with what separates it from its predecessor) and value range of member `i`.
    pub fn member(&self, i: usize) -> (&str, Range<usize>, Range<usize>) {
        let m = &self.members[i];
        (&m.name, m.span.clone(), m.value.clone())
    }

    /// Offset just behind the opening brace.
    pub(super) fn body_start(&self) -> usize {
        self.bytes.iter().position(|b| *b == b'{').map_or(0, |p| p + 1)
    }
}

/// Whether Python, which the engines are written in, takes a JSON value for true.
pub fn is_truthy(json: &str) -> bool {
    let empty = matches!(json, "null" | "false" | "\"\"" | "[]" | "{}");
    !empty && json.parse::<f64>() != Ok(0.0)
}

#[derive(serde::Deserialize)]
struct BorrowedStr<'a>(#[serde(borrow)] Cow<'a, str>);

/// Collects the members of one object.
struct Members<'t> {
    text: &'t [u8],
}

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = Vec<Member>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Vec<Member>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let base = self.text.as_ptr() as usize;
        let mut members = Vec::with_capacity(16);
        let mut end = self.text.iter().position(|b| *b == b'{').map_or(0, |p| p + 1);
        while let Some(name) = map.next_key::<BorrowedStr<'de>>()? {
            if members.len() == MAX_MEMBERS {
                return Err(serde::de::Error::custom(format_args!(
                    "more than {MAX_MEMBERS} top-level fields"
                )));
            }
            let value: &RawValue = map.next_value()?;
            let start = value.get().as_ptr() as usize - base;
            let value = start..start + value.get().len();
            members.push(Member { name: name.0.into(), span: end..value.end, value: value.clone() });
            end = value.end;
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Result<Object, ScanError> {
        Object::scan(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn fields_keep_their_text() {
        let object =
            scan(r#" {"a": 1.0 ,"b":"x\/\u0041", "c":[1, {"d":null}], "seed":18446744073709551616} "#)
                .unwrap();
        assert_eq!(object.get("a"), Some("1.0"));
        assert_eq!(object.get("b"), Some(r#""x\/\u0041""#));
        assert_eq!(object.get_str("b").as_deref(), Some("x/A"));
        assert_eq!(object.get("c"), Some(r#"[1, {"d":null}]"#));
        assert_eq!(object.get("seed"), Some("18446744073709551616"));
        assert_eq!(object.get("d"), None);
    }

    #[test]
    fn an_escaped_name_is_the_same_name_and_the_last_one_counts() {
        let object = scan(r#"{"kv\u005fx":1,"kv_x":2}"#).unwrap();
        assert_eq!(object.get("kv_x"), Some("2"));
        assert_eq!(object.len(), 2);
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(scan(&deep).unwrap().get("a").map(str::len), Some(400_000));
        assert!(matches!(scan(&"[".repeat(100_000)), Err(ScanError::Syntax(_))));
        assert!(matches!(scan(&format!("{{\"a\":{}", "[".repeat(100_000))), Err(ScanError::Syntax(_))));
    }

    #[test]
    fn the_number_of_fields_is_bounded() {
        let fields = |n: usize| format!("{{{}}}", vec![r#""":0"#; n].join(","));
        assert_eq!(scan(&fields(MAX_MEMBERS)).unwrap().len(), MAX_MEMBERS);
        let error = scan(&fields(MAX_MEMBERS + 1)).unwrap_err();
        assert!(error.to_string().contains("more than 4096 top-level fields"), "{error}");
    }

    #[test]
    fn lone_surrogates_and_nul_are_the_engines_business() {
        let object = scan(r#"{"prompt":"\ud800 \u0000"}"#).unwrap();
        assert_eq!(object.get("prompt"), Some(r#""\ud800 \u0000""#));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "nul", "{", "{} x", r#"{"a" 1}"#, r#"{"a":1,}"#, "{'a':1}"] {
            assert!(matches!(scan(text), Err(ScanError::Syntax(_))), "{text}");
        }
        for text in ["[1]", "1", "null", "\"x\""] {
            assert!(matches!(scan(text), Err(ScanError::NotAnObject)), "{text}");
        }
        assert!(scan("{}").unwrap().is_empty());
    }

    #[test]
    fn truthiness_is_pythons() {
        let object = scan(r#"{"a":-0.0,"b":false,"c":null,"d":[],"e":"","f":1,"g":true,"h":"0"}"#).unwrap();
        for name in ["a", "b", "c", "d", "e", "nope"] {
            assert!(!object.is_truthy(name), "{name}");
        }
        for name in ["f", "g", "h"] {
            assert!(object.is_truthy(name), "{name}");
        }
    }
}
