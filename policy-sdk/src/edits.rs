//! How a leg differs from what the client sent.

use std::borrow::Cow;

/// One change to a top-level field of a leg's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Replace the field, or append it where it is absent.
    Set {
        /// Name of the field.
        name: Cow<'static, str>,
        /// JSON text, spliced in as it is; the router refuses anything that is
        /// not exactly one JSON value.
        value: Cow<'static, str>,
    },
    /// Take the field out; no error where it is absent.
    Remove(Cow<'static, str>),
}

/// One leg of a request: the client's own bytes with a few fields changed.
/// Everything that no edit names reaches the engine byte for byte.
///
/// ```
/// use edge_router_policy::Leg;
///
/// let leg = Leg::new().set("max_tokens", "1").set_json("stream", false).remove("stop");
/// assert_eq!(leg.edits.len(), 3);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leg {
    /// Applied in order.
    pub edits: Vec<Edit>,
    /// Added to the request headers. Refused are hop-by-hop headers,
    /// credentials, `host`, `expect`, `accept-encoding`, and what speaks of the
    /// body's length, type or coding.
    pub headers: Vec<(String, String)>,
}

impl Leg {
    /// A leg that sends the client's body as it is.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a field to JSON text, byte for byte.
    #[must_use]
    pub fn set(mut self, name: impl Into<Cow<'static, str>>, json: impl Into<Cow<'static, str>>) -> Self {
        self.edits.push(Edit::Set { name: name.into(), value: json.into() });
        self
    }

    /// Sets a field to a value, such as `1`, `"text"` or `json!({..})`.
    #[must_use]
    pub fn set_json(self, name: impl Into<Cow<'static, str>>, value: impl Into<serde_json::Value>) -> Self {
        self.set(name, value.into().to_string())
    }

    /// Takes a field out of the body.
    #[must_use]
    pub fn remove(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.edits.push(Edit::Remove(name.into()));
        self
    }

    /// Adds a request header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}
