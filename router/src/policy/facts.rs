//! What a policy may know of a request.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use edge_router_policy::RequestSource;
use http::HeaderMap;

use crate::body::prompt;
use crate::body::scan::Object;
use crate::body::sse::PRIVATE_FIELDS;
use crate::headers::{self, CREDENTIALS};

/// Longer values are no business of a policy: a prompt would be copied into its memory.
const MAX_FIELD: usize = 64 * 1024;

/// Where the session key of a request is looked for, in order: `header:name` or `field:name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionKey {
    /// A request header.
    Header(String),
    /// A top-level field of the body.
    Field(String),
}

/// A client's request. Made once and shared by all attempts.
#[derive(Debug)]
pub struct ClientRequest {
    /// Path of the endpoint.
    pub endpoint: String,
    /// The client's headers.
    pub headers: HeaderMap,
    /// The body.
    pub object: Object,
    /// What the client sent instead, where a renderer has made the body of it.
    pub unrendered: Option<Object>,
    /// Tokens of a block in the prefix index.
    pub block_tokens: usize,
    /// Where to look for the session key.
    pub session_keys: Arc<[SessionKey]>,
    prompt_tokens: OnceLock<u32>,
    blocks: OnceLock<Vec<u64>>,
}

impl ClientRequest {
    /// A request to `endpoint`.
    pub fn new(
        endpoint: String,
        headers: HeaderMap,
        object: Object,
        block_tokens: usize,
        session_keys: Arc<[SessionKey]>,
    ) -> Self {
        Self {
            endpoint,
            headers,
            object,
            unrendered: None,
            block_tokens,
            session_keys,
            prompt_tokens: OnceLock::new(),
            blocks: OnceLock::new(),
        }
    }

    /// Estimated prompt tokens; counted on first use.
    pub fn prompt_tokens(&self) -> u32 {
        *self.prompt_tokens.get_or_init(|| prompt::tokens(&self.object))
    }

    /// What names the client's session: the first of the session keys that the request has.
    pub fn session_key(&self) -> Option<Cow<'_, str>> {
        self.session_keys.iter().find_map(|key| match key {
            SessionKey::Header(name) => self.header(name),
            SessionKey::Field(name) => {
                let body = self.unrendered.as_ref().unwrap_or(&self.object);
                let field = short(body.get(name)).filter(|v| v != "null")?;
                Some(body.get_str(name).unwrap_or(field))
            }
        })
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        if headers::is(name, &CREDENTIALS) {
            return None;
        }
        std::str::from_utf8(self.headers.get(name)?.as_bytes()).ok().map(Cow::Borrowed)
    }

    /// Chained hashes of the prompt's blocks; computed on first use.
    pub fn blocks(&self) -> &[u64] {
        self.blocks.get_or_init(|| prompt::blocks(&self.object, self.block_tokens))
    }
}

/// One attempt at a request, as policies see it.
#[derive(Debug)]
pub struct RequestFacts {
    /// The client's request.
    pub client: Arc<ClientRequest>,
    /// Id that both legs carry.
    pub id: String,
    /// Whether a policy in the chain asked for block hashes.
    pub show_blocks: bool,
    prefill_answer: OnceLock<Object>,
    /// Comes and goes with the prefill instance that could use it.
    readback: Mutex<Option<Bytes>>,
}

impl SessionKey {
    /// The field's name, if it is one.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Field(name) => Some(name),
            Self::Header(_) => None,
        }
    }
}

impl RequestFacts {
    /// A fresh attempt.
    pub fn new(client: Arc<ClientRequest>, id: String, show_blocks: bool) -> Self {
        Self { client, id, show_blocks, prefill_answer: OnceLock::new(), readback: Mutex::default() }
    }

    /// Prefill has answered.
    pub fn set_prefill_answer(&self, answer: Object) {
        // Prefill answers once per attempt.
        let _ = self.prefill_answer.set(answer);
    }

    /// What a decode instance kept of the last turn, as long as the prefill leg may use it.
    pub fn set_readback(&self, params: Option<Bytes>) {
        *self.readback.lock().unwrap_or_else(PoisonError::into_inner) = params;
    }

    /// What prefill answered, once it has.
    pub fn prefill_answer(&self) -> Option<&Object> {
        self.prefill_answer.get()
    }
}

fn short(value: Option<&str>) -> Option<Cow<'_, str>> {
    value.filter(|v| v.len() <= MAX_FIELD).map(Cow::Borrowed)
}

impl RequestSource for RequestFacts {
    fn endpoint(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.client.endpoint)
    }

    fn model(&self) -> Option<Cow<'_, str>> {
        short(self.client.object.get("model"))?;
        self.client.object.get_str("model")
    }

    fn body_length(&self) -> u64 {
        self.client.object.bytes().len() as u64
    }

    fn prompt_tokens(&self) -> u32 {
        self.client.prompt_tokens()
    }

    fn field(&self, name: &str) -> Option<Cow<'_, str>> {
        // They name engines' inner addresses; a client's values are never used, so nobody sees them.
        if PRIVATE_FIELDS.contains(&name) {
            return None;
        }
        short(self.client.object.get(name))
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        self.client.header(name)
    }

    fn session_key(&self) -> Option<Cow<'_, str>> {
        self.client.session_key()
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.id)
    }

    fn prefix_blocks(&self) -> Vec<u64> {
        if self.show_blocks { self.client.blocks().to_vec() } else { Vec::new() }
    }

    fn prefill_field(&self, name: &str) -> Option<Cow<'_, str>> {
        short(self.prefill_answer.get()?.get(name))
    }

    fn readback(&self) -> Option<Cow<'_, str>> {
        let readback = self.readback.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        String::from_utf8(readback.into()).ok().map(Cow::Owned)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn facts(body: &str, headers: &[(&'static str, &'static str)]) -> RequestFacts {
        let object = Object::scan(Bytes::copy_from_slice(body.as_bytes())).unwrap();
        let headers = headers
            .iter()
            .map(|(n, v)| (http::HeaderName::from_static(n), http::HeaderValue::from_static(v)));
        let keys: Arc<[SessionKey]> =
            Arc::new([SessionKey::Header("x-session-id".into()), SessionKey::Field("session_id".into())]);
        let client = ClientRequest::new("/v1/completions".into(), headers.collect(), object, 32, keys);
        RequestFacts::new(Arc::new(client), "id".into(), false)
    }

    #[test]
    fn a_session_is_named_by_what_the_client_sent_not_by_what_was_made_of_it() {
        let object = |text: &'static str| Object::scan(Bytes::from_static(text.as_bytes())).unwrap();
        let keys: Arc<[SessionKey]> = Arc::new([SessionKey::Field("user".into())]);
        let made = object(r#"{"token_ids":[1]}"#);
        let mut client = ClientRequest::new(String::new(), HeaderMap::new(), made, 32, keys);
        assert_eq!(client.session_key(), None);
        client.unrendered = Some(object(r#"{"prompt":"hi","user":"ann"}"#));
        assert_eq!(client.session_key().as_deref(), Some("ann"));
    }

    #[test]
    fn credentials_and_handles_are_never_shown() {
        let facts = facts(
            r#"{"kv_transfer_params":{"remote_host":"x"},"model":"m"}"#,
            &[("authorization", "Bearer x"), ("x-api-key", "k"), ("x-team", "blue")],
        );
        assert_eq!(facts.field("kv_transfer_params"), None);
        assert_eq!(facts.header("Authorization"), None);
        assert_eq!(facts.header("X-API-Key"), None);
        assert_eq!(facts.header("X-Team").as_deref(), Some("blue"));
        assert_eq!(facts.model().as_deref(), Some("m"));
    }

    #[test]
    fn header_values_may_be_any_utf8() {
        let mut client = ClientRequest::new("/".into(), HeaderMap::new(), Object::empty(), 32, Arc::new([]));
        client.headers.insert("x-team", http::HeaderValue::from_bytes("grün".as_bytes()).unwrap());
        client.headers.insert("x-latin", http::HeaderValue::from_bytes(b"gr\xfcn").unwrap());
        let facts = RequestFacts::new(Arc::new(client), "id".into(), false);
        assert_eq!((facts.header("x-team").as_deref(), facts.header("x-latin")), (Some("grün"), None));
    }

    #[test]
    fn the_first_session_key_that_is_there_counts() {
        let both = facts(r#"{"session_id":"body"}"#, &[("x-session-id", "head")]);
        assert_eq!(both.session_key().as_deref(), Some("head"));
        assert_eq!(facts(r#"{"session_id":"body"}"#, &[]).session_key().as_deref(), Some("body"));
        assert_eq!(facts(r#"{"session_id":7}"#, &[]).session_key().as_deref(), Some("7"));
        assert_eq!(facts(r#"{"session_id":null}"#, &[]).session_key(), None);
    }

    #[test]
    fn long_values_stay_in_the_router() {
        let body = format!(r#"{{"prompt":"{0}","model":"{0}"}}"#, "x".repeat(MAX_FIELD));
        let facts = facts(&body, &[("x-long", "x")]);
        assert_eq!((facts.field("prompt"), facts.model()), (None, None));
    }
}
