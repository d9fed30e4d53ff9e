//! Hand-made requests.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::{Request, RequestSource};

/// A request to hand to a policy; made by [`request`].
#[derive(Clone, Debug)]
pub struct TestRequest {
    endpoint: String,
    id: String,
    body_length: u64,
    fields: BTreeMap<String, Box<RawValue>>,
    headers: Vec<(String, String)>,
    session_key: Option<String>,
    prompt_tokens: u32,
    prefix_blocks: Vec<u64>,
    prefill_fields: BTreeMap<String, Box<RawValue>>,
    readback: Option<String>,
}

/// A request to this endpoint, with an empty body.
pub fn request(endpoint: &str) -> TestRequest {
    TestRequest {
        endpoint: endpoint.to_owned(),
        id: "request-1".to_owned(),
        body_length: 0,
        fields: BTreeMap::new(),
        headers: Vec::new(),
        session_key: None,
        prompt_tokens: 0,
        prefix_blocks: Vec::new(),
        prefill_fields: BTreeMap::new(),
        readback: None,
    }
}

#[expect(clippy::expect_used, reason = "a test with a broken body should stop there")]
fn top_level_fields(body: &str) -> BTreeMap<String, Box<RawValue>> {
    serde_json::from_str(body).expect("a body is a JSON object")
}

impl TestRequest {
    /// The body that the client sent, as JSON text.
    #[must_use]
    pub fn json(mut self, body: &str) -> Self {
        self.fields = top_level_fields(body);
        self.body_length = body.len() as u64;
        self
    }

    /// Prefill's answer, as JSON text.
    #[must_use]
    pub fn prefill_answer(mut self, body: &str) -> Self {
        self.prefill_fields = top_level_fields(body);
        self
    }

    /// KV transfer params that a decode instance kept of the last turn.
    #[must_use]
    pub fn readback(mut self, params: &str) -> Self {
        self.readback = Some(params.to_owned());
        self
    }

    /// A header of the request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// What the router would take for the client's session.
    #[must_use]
    pub fn session_key(mut self, key: &str) -> Self {
        self.session_key = Some(key.to_owned());
        self
    }

    /// The estimated length of the prompt.
    #[must_use]
    pub fn prompt_tokens(mut self, tokens: u32) -> Self {
        self.prompt_tokens = tokens;
        self
    }

    /// The chained hashes of the prompt's leading blocks.
    #[must_use]
    pub fn prefix_blocks(mut self, hashes: impl IntoIterator<Item = u64>) -> Self {
        self.prefix_blocks = hashes.into_iter().collect();
        self
    }

    /// The id that the router gave the request.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.id = id.to_owned();
        self
    }

    /// What a hook of the policy takes.
    pub fn as_request(&self) -> Request<'_> {
        Request::new(self)
    }
}

impl RequestSource for TestRequest {
    fn endpoint(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.endpoint)
    }

    fn model(&self) -> Option<Cow<'_, str>> {
        serde_json::from_str(self.fields.get("model")?.get()).ok().map(Cow::Owned)
    }

    fn body_length(&self) -> u64 {
        self.body_length
    }

    fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    fn field(&self, name: &str) -> Option<Cow<'_, str>> {
        if matches!(name, "kv_transfer_params" | "ec_transfer_params") {
            return None;
        }
        self.fields.get(name).map(|value| Cow::Borrowed(value.get()))
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        if ["authorization", "proxy-authorization", "cookie", "x-api-key"]
            .iter()
            .any(|credential| name.eq_ignore_ascii_case(credential))
        {
            return None;
        }
        let header = self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
        header.map(|(_, value)| Cow::Borrowed(value.as_str()))
    }

    fn session_key(&self) -> Option<Cow<'_, str>> {
        self.session_key.as_deref().map(Cow::Borrowed)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.id)
    }

    fn prefix_blocks(&self) -> Vec<u64> {
        self.prefix_blocks.clone()
    }

    fn prefill_field(&self, name: &str) -> Option<Cow<'_, str>> {
        self.prefill_fields.get(name).map(|value| Cow::Borrowed(value.get()))
    }

    fn readback(&self) -> Option<Cow<'_, str>> {
        self.readback.as_deref().map(Cow::Borrowed)
    }
}
