//! Listens to the tokens of an answer, whole or in events, for the conversation's next turn.

use bytes::{Bytes, BytesMut};
use memchr::{memchr, memmem};
use serde::Deserialize;
use serde_json::value::RawValue;

/// What was heard of an answer so far.
#[derive(Debug, Default)]
pub struct Spoken {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    /// Whether something was said that was not understood.
    incomplete: bool,
    kv_params: Option<Bytes>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(borrow)]
    kv_transfer_params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    prompt_token_ids: Option<Vec<u32>>,
    token_ids: Option<Vec<u32>>,
}

impl Spoken {
    /// A whole answer.
    pub fn hear_answer(&mut self, json: &[u8]) {
        match serde_json::from_slice(json) {
            Ok(answer) => self.hear(answer),
            Err(_) => self.incomplete = true,
        }
    }

    /// Events of a stream, each of them whole.
    pub fn hear_events(&mut self, events: &[u8]) {
        for line in events.split(|byte| *byte == b'\n') {
            let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { continue };
            if data.starts_with(b"{") {
                self.hear_answer(data);
            }
        }
    }

    /// A part of the answer was passed on unheard.
    pub fn missed(&mut self) {
        self.incomplete = true;
    }

    /// The prompt's tokens, if the answer names them.
    pub fn prompt(&self) -> Option<&[u32]> {
        (!self.incomplete && !self.prompt.is_empty()).then_some(&self.prompt)
    }

    /// The generated tokens, if the answer names them.
    pub fn tokens(&self) -> Option<&[u32]> {
        (!self.incomplete && !self.tokens.is_empty()).then_some(&self.tokens)
    }

    /// The KV transfer params that came with it: where decode keeps its KV cache.
    pub fn kv_params(&self) -> Option<&Bytes> {
        self.kv_params.as_ref()
    }

    fn hear(&mut self, answer: Answer<'_>) {
        if let Some(params) = answer.kv_transfer_params {
            self.kv_params = Some(Bytes::copy_from_slice(params.get().as_bytes()));
        }
        self.prompt.extend(answer.prompt_token_ids.unwrap_or_default());
        for choice in answer.choices {
            self.incomplete |= choice.index != 0;
            self.prompt.extend(choice.prompt_token_ids.unwrap_or_default());
            self.tokens.extend(choice.token_ids.unwrap_or_default());
        }
    }
}

/// An answer, or events of one, with `null` for the token ids that the client has not asked for.
pub fn without_token_ids(text: Bytes) -> Bytes {
    // A quote within a string is escaped, so that no generated text can look like a field.
    const FIELD: &[u8] = b"token_ids\":";
    let (mut out, mut copied) = (BytesMut::new(), 0);
    for at in memmem::find_iter(&text, FIELD) {
        let named = [&b"\""[..], b"\"prompt_"].iter().any(|begin| text[..at].ends_with(begin));
        let value = at + FIELD.len();
        let list = text[value..].trim_ascii_start().starts_with(b"[");
        let Some(end) = memchr(b']', &text[value..]).filter(|_| named && list) else { continue };
        out.extend_from_slice(&text[copied..value]);
        out.extend_from_slice(b"null");
        copied = value + end + 1;
    }
    if copied == 0 {
        return text;
    }
    out.extend_from_slice(&text[copied..]);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_say_what_a_whole_answer_says() {
        let mut whole = Spoken::default();
        whole.hear_answer(
            br#"{"prompt_token_ids":[1,2],"choices":[{"index":0,"message":{"content":"x"},"token_ids":[3,4]}],"kv_transfer_params":{"a":1}}"#,
        );
        let mut streamed = Spoken::default();
        streamed
            .hear_events(b"data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"prompt_token_ids\":[1,2]}\n\n");
        streamed.hear_events(b": ping\n\ndata: {\"choices\":[{\"index\":0,\"token_ids\":[3]}]}\n\ndata: {\"choices\":[{\"index\":0,\"token_ids\":[4]}],\"kv_transfer_params\":{\"a\":1}}\r\n\r\ndata: [DONE]\n\n");
        for spoken in [whole, streamed] {
            assert_eq!((spoken.prompt(), spoken.tokens()), (Some(&[1, 2][..]), Some(&[3, 4][..])));
            assert_eq!(spoken.kv_params(), Some(&Bytes::from_static(b"{\"a\":1}")));
        }
    }

    #[test]
    fn an_answer_that_was_not_understood_proves_nothing() {
        for answer in ["{\"choices\":7}", "{\"choices\":[{\"index\":1,\"token_ids\":[1]}]}"] {
            let mut spoken = Spoken::default();
            spoken.hear_answer(answer.as_bytes());
            assert_eq!(spoken.tokens(), None);
        }
    }

    #[test]
    fn token_ids_are_hidden_and_nothing_else() {
        let text = r#"data: {"a":[1],"prompt_token_ids": [1, 2],"choices":[{"token_ids":[3],"text":"\"token_ids\":[9]"},{"token_ids":null}]}"#;
        let hidden = r#"data: {"a":[1],"prompt_token_ids":null,"choices":[{"token_ids":null,"text":"\"token_ids\":[9]"},{"token_ids":null}]}"#;
        assert_eq!(without_token_ids(Bytes::from_static(text.as_bytes())), hidden);
        let plain = Bytes::from_static(b"data: {\"token_ids\":null}\n\n");
        assert_eq!(without_token_ids(plain.clone()).as_ptr(), plain.as_ptr());
    }
}
