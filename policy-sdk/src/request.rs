//! The request being routed, read on demand.

use std::borrow::Cow;
use std::fmt;

/// Where a [`Request`] reads from: the router, natively or across the
/// component boundary, or a test. Policies use [`Request`] instead.
pub trait RequestSource {
    /// See [`Request::endpoint`].
    fn endpoint(&self) -> Cow<'_, str>;
    /// See [`Request::model`].
    fn model(&self) -> Option<Cow<'_, str>>;
    /// See [`Request::body_length`].
    fn body_length(&self) -> u64;
    /// See [`Request::prompt_tokens`].
    fn prompt_tokens(&self) -> u32;
    /// See [`Request::field`].
    fn field(&self, name: &str) -> Option<Cow<'_, str>>;
    /// See [`Request::header`].
    fn header(&self, name: &str) -> Option<Cow<'_, str>>;
    /// See [`Request::session_key`].
    fn session_key(&self) -> Option<Cow<'_, str>>;
    /// See [`Request::id`].
    fn id(&self) -> Cow<'_, str>;
    /// See [`Request::prefix_blocks`].
    fn prefix_blocks(&self) -> Vec<u64>;
    /// See [`Request::prefill_field`].
    fn prefill_field(&self, name: &str) -> Option<Cow<'_, str>>;
    /// See [`Request::readback`].
    fn readback(&self) -> Option<Cow<'_, str>>;
}

/// The request being routed. The body stays in the router: a policy asks for
/// the fields it needs, and each question is a call across the component
/// boundary (some 0.1 µs, plus the copy).
#[derive(Clone, Copy)]
pub struct Request<'a>(&'a dyn RequestSource);

impl<'a> Request<'a> {
    /// A request that reads from `source`.
    pub fn new(source: &'a dyn RequestSource) -> Self {
        Self(source)
    }

    /// Path of the API endpoint, such as `/v1/chat/completions`.
    pub fn endpoint(&self) -> Cow<'a, str> {
        self.0.endpoint()
    }

    /// The `model` field, if it is a string of at most 64 KiB.
    pub fn model(&self) -> Option<Cow<'a, str>> {
        self.0.model()
    }

    /// Length of the body in bytes.
    pub fn body_length(&self) -> u64 {
        self.0.body_length()
    }

    /// Estimated prompt length in tokens; exact when the prompt is token ids.
    pub fn prompt_tokens(&self) -> u32 {
        self.0.prompt_tokens()
    }

    /// JSON text of a top-level field of the body, as the client wrote it.
    /// Values over 64 KiB, and `kv_transfer_params` and `ec_transfer_params`,
    /// read as absent.
    pub fn field(&self, name: &str) -> Option<Cow<'a, str>> {
        self.0.field(name)
    }

    /// A request header, the name in any case. Credentials (`authorization`,
    /// `proxy-authorization`, `cookie`, `x-api-key`) read as absent, and so
    /// does a value that is not UTF-8.
    pub fn header(&self, name: &str) -> Option<Cow<'a, str>> {
        self.0.header(name)
    }

    /// What names the client's session or conversation: the header or field
    /// that the router's `session_key` setting lists first and the request
    /// has.
    pub fn session_key(&self) -> Option<Cow<'a, str>> {
        self.0.session_key()
    }

    /// Id that the router gave the request; both legs carry it as
    /// `X-Request-Id`. Fresh for every attempt.
    pub fn id(&self) -> Cow<'a, str> {
        self.0.id()
    }

    /// Chained hashes of the prompt's leading blocks. Hash i covers blocks 0
    /// to i, so equal hashes mean equal prefixes. Empty unless the manifest
    /// asks for [`Facts::prefix_blocks`](crate::Facts::prefix_blocks).
    pub fn prefix_blocks(&self) -> Vec<u64> {
        self.0.prefix_blocks()
    }

    /// JSON text of a top-level field of prefill's answer, once it is there:
    /// while decode is scheduled and KV transfer params are merged after a
    /// serial prefill. Values over 64 KiB read as absent.
    pub fn prefill_field(&self, name: &str) -> Option<Cow<'a, str>> {
        self.0.prefill_field(name)
    }

    /// While the prefill leg is rewritten: JSON text of the KV transfer params
    /// with which the chosen prefill instance can read back what a decode
    /// instance kept of the conversation's last turn. The router has made sure
    /// that the prompt goes on from it, that it is the same client, and that
    /// the instance can do so. Whoever sets it as `kv_transfer_params` uses it
    /// up.
    pub fn readback(&self) -> Option<Cow<'a, str>> {
        self.0.readback()
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("id", &self.id()).field("endpoint", &self.endpoint()).finish()
    }
}
