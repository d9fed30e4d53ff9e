//! KV transfer params as text of which single values are read or replaced.
//!
//! What prefill returned is handed to decode as prefill wrote it: unknown keys,
//! number literals and white space stay. Parsing and writing it anew would lose
//! some of that.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON object and where its values are.
#[derive(Debug)]
pub(crate) struct Params<'a> {
    text: &'a str,
    members: Members<'a>,
}

impl<'a> Params<'a> {
    /// Reads `text`, which must be one JSON object.
    ///
    /// # Errors
    ///
    /// When it is anything else.
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        Ok(Self { text, members: serde_json::from_str(text)? })
    }

    /// JSON text of a value, `None` where it is absent or null. Where a name
    /// occurs twice the last one counts, as it does in the engines' parser.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        let (_, value) = self.members.0.iter().rev().find(|(member, _)| member == name)?;
        Some(value.get()).filter(|value| *value != "null")
    }

    /// A value that is a string, without its quotes.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?).ok()
    }

    /// Names and the JSON text of their values, in the order of the text.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.members.0.iter().map(|(name, value)| (name.as_str(), value.get()))
    }

    /// Whether the object has the name, be it with a null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.members.0.iter().any(|(member, _)| member == name)
    }

    /// The text with these values, each a name and its JSON, in place of the
    /// ones it has, or behind them where it has none.
    pub(crate) fn with(&self, values: &[(&str, String)]) -> String {
        let piece = |from: usize, to: usize| self.text.get(from..to).unwrap_or_default();
        let mut out = String::with_capacity(self.text.len() + 64 * values.len());
        let mut copied = 0;
        for (name, old) in &self.members.0 {
            if let Some((_, new)) = values.iter().find(|(changed, _)| changed == name) {
                let start = old.get().as_ptr().addr() - self.text.as_ptr().addr();
                out.push_str(piece(copied, start));
                out.push_str(new);
                copied = start + old.get().len();
            }
        }
        let end = self.text.rfind('}').unwrap_or(copied);
        out.push_str(piece(copied, end));
        let mut first = self.members.0.is_empty();
        for (name, new) in values.iter().filter(|(name, _)| !self.has(name)) {
            let comma = if std::mem::take(&mut first) { "" } else { "," };
            out.push_str(&format!("{comma}\"{name}\":{new}"));
        }
        out.push_str(piece(end, self.text.len()));
        out
    }
}

/// Names and values in the order of the text.
#[derive(Debug)]
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, values: &[(&str, &str)]) -> String {
        let values: Vec<_> = values.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Params::parse(text).unwrap().with(&values)
    }

    #[test]
    fn only_the_named_value_changes() {
        let text = "{ \"a\" : 4.80e1 ,\n \"b\\u0062\":[1, {\"a\":2}], \"c\":\"}\" } ";
        assert_eq!(with(text, &[]), text);
        assert_eq!(with(text, &[("a", "7")]), text.replace("4.80e1", "7"));
        assert_eq!(with(text, &[("bb", "8")]), text.replace("[1, {\"a\":2}]", "8"));
        assert_eq!(with(text, &[("c", "9"), ("a", "1")]), text.replace("\"}\"", "9").replace("4.80e1", "1"));
    }

    #[test]
    fn a_new_value_is_appended() {
        assert_eq!(with("{}", &[("x", "1"), ("y", "2")]), r#"{"x":1,"y":2}"#);
        assert_eq!(with(r#"{"a":1}"#, &[("x", "[2]")]), r#"{"a":1,"x":[2]}"#);
    }

    #[test]
    fn of_two_values_under_one_name_the_last_counts_and_both_are_replaced() {
        let twice = r#"{"a":1,"a":"two"}"#;
        assert_eq!(Params::parse(twice).unwrap().text("a").as_deref(), Some("two"));
        assert_eq!(with(twice, &[("a", "3")]), r#"{"a":3,"a":3}"#);
    }

    #[test]
    fn null_reads_as_absent_but_is_there() {
        let params = Params::parse(r#"{"a":null}"#).unwrap();
        assert!(params.has("a") && params.get("a").is_none() && !params.has("b"));
    }

    #[test]
    fn anything_but_one_object_is_refused() {
        for text in ["", "null", "[]", "{", "{} {}", "\"x\""] {
            assert!(Params::parse(text).is_err(), "{text}");
        }
    }
}
