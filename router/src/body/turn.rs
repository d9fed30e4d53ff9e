//! What a turn of a conversation says, reduced to what is needed to tell whether a later one goes on
//! from it without a change.
//!
//! A KV cache that decode kept covers the prompt and what was generated. It fits a later prompt only if
//! that begins with exactly the same tokens (engine contract §4.4). Token ids prove it. Messages can be
//! compared byte by byte, which comes as near to it as text can.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::scan::Object;
use super::spoken::Spoken;

/// Fields of a chat that have no influence on how its prompt is rendered. All others must be equal.
const NOT_RENDERED: [&str; 26] = [
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "n",
    "user",
    "metadata",
    "store",
    "priority",
    "kv_transfer_params",
];

/// The prompt of a request.
#[derive(Debug)]
pub struct Turn {
    /// Of what is not compared piece by piece, but must be equal.
    frame: u128,
    prompt: Prompt,
}

#[derive(Debug)]
enum Prompt {
    Tokens(Vec<u32>),
    Messages(Vec<Box<RawValue>>),
}

/// What a KV cache covers: a prompt and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    frame: u128,
    covered: Covered,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Covered {
    /// So many tokens, the generated ones among them.
    Tokens { count: usize, hash: u128 },
    /// So many messages, and then the assistant's.
    Messages { count: usize, hash: u128, answer: u128 },
}

impl Turn {
    /// The turn in the body of a request. `None` where there is none that could be compared; messages are
    /// compared only if `messages` says so.
    pub fn of(object: &Object, messages: bool, ignored: &[&str]) -> Option<Self> {
        if let Some(ids) = object.get("token_ids") {
            // Placeholders of media are the same tokens whatever they stand for.
            let media = ["features", "content_parts"].iter().any(|name| object.is_set(name));
            let prompt = serde_json::from_str(ids).ok().filter(|_| !media)?;
            let frame = frame(object, |name| ["model", "cache_salt"].contains(&name));
            return Some(Self { frame, prompt: Prompt::Tokens(prompt) });
        }
        let list = object.get("messages").filter(|_| messages)?;
        let frame = frame(object, |name| !NOT_RENDERED.contains(&name) && !ignored.contains(&name));
        Some(Self { frame, prompt: Prompt::Messages(serde_json::from_str(list).ok()?) })
    }

    /// What decode's KV cache covers after this turn, if the answer says it plainly.
    pub fn past(&self, spoken: &Spoken) -> Option<Past> {
        let covered = match &self.prompt {
            Prompt::Tokens(prompt) => {
                let tokens = prompt.iter().chain(spoken.tokens()?);
                Covered::Tokens { count: tokens.clone().count(), hash: hash_of_tokens(tokens) }
            }
            Prompt::Messages(messages) => Covered::Messages {
                count: messages.len(),
                hash: hash_of_messages(messages),
                answer: spoken.text()?,
            },
        };
        Some(Past { frame: self.frame, covered })
    }

    /// Whether this turn's prompt begins with all that `past` covers.
    pub fn goes_on_from(&self, past: &Past) -> bool {
        if self.frame != past.frame {
            return false;
        }
        match (&self.prompt, &past.covered) {
            (Prompt::Tokens(prompt), Covered::Tokens { count, hash }) => {
                prompt.get(..*count).is_some_and(|begin| hash_of_tokens(begin.iter()) == *hash)
            }
            (Prompt::Messages(messages), Covered::Messages { count, hash, answer }) => {
                messages.get(..*count).is_some_and(|begin| hash_of_messages(begin) == *hash)
                    && messages.get(*count).and_then(|m| assistants_text(m.get())) == Some(*answer)
            }
            _ => false,
        }
    }
}

fn frame(object: &Object, counts: impl Fn(&str) -> bool) -> u128 {
    let mut hasher = Xxh3::new();
    for i in 0..object.len() {
        let (name, _, value) = object.member(i);
        if counts(name) {
            piece(&mut hasher, name.as_bytes());
            piece(&mut hasher, &object.bytes()[value]);
        }
    }
    hasher.digest128()
}

/// With its length, so that no two lists of pieces read the same.
fn piece(hasher: &mut Xxh3, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn hash_of_tokens<'a>(tokens: impl Iterator<Item = &'a u32>) -> u128 {
    let mut hasher = Xxh3::new();
    tokens.for_each(|token| hasher.update(&token.to_le_bytes()));
    hasher.digest128()
}

fn hash_of_messages(messages: &[Box<RawValue>]) -> u128 {
    let mut hasher = Xxh3::new();
    messages.iter().for_each(|message| piece(&mut hasher, message.get().as_bytes()));
    hasher.digest128()
}

/// Hash of what the assistant said, if the message holds nothing else.
fn assistants_text(message: &str) -> Option<u128> {
    #[derive(Deserialize)]
    struct Message {
        role: String,
        content: String,
        #[serde(flatten)]
        rest: Map<String, Value>,
    }
    let message: Message = serde_json::from_str(message).ok()?;
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    (message.role == "assistant" && message.rest.values().all(empty))
        .then(|| xxh3_128(message.content.as_bytes()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn turn(body: &str) -> Option<Turn> {
        Turn::of(&Object::scan(Bytes::copy_from_slice(body.as_bytes())).unwrap(), true, &["session_id"])
    }

    fn spoken(answer: &str) -> Spoken {
        let mut spoken = Spoken::default();
        spoken.hear_answer(answer.as_bytes());
        spoken
    }

    const FIRST: &str =
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":9,"session_id":"a"}"#;
    const ANSWER: &str = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"é \"x\""},"finish_reason":"stop"}]}"#;

    fn second(assistant: &str, rest: &str) -> String {
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}},{assistant},{{"role":"user","content":"more"}}]{rest}}}"#
        )
    }

    fn chat_goes_on(answer: &str, next: &str) -> bool {
        let past = turn(FIRST).unwrap().past(&spoken(answer));
        past.is_some_and(|past| turn(next).unwrap().goes_on_from(&past))
    }

    #[test]
    fn a_chat_goes_on_if_nothing_was_changed() {
        let assistant = r#"{"role":"assistant","content":"\u00e9 \"x\"","refusal":null,"tool_calls":[]}"#;
        assert!(chat_goes_on(ANSWER, &second(assistant, "")));
        assert!(chat_goes_on(
            ANSWER,
            &second(assistant, r#","temperature":0.5,"session_id":"a","stream":true"#)
        ));
        assert!(!chat_goes_on(ANSWER, &second(assistant, r#","tools":[]"#)));
        assert!(!chat_goes_on(ANSWER, &second(assistant, "").replace("\"hi\"", "\"hi \"")));
        assert!(!chat_goes_on(ANSWER, &second(assistant, "").replace("\"m\"", "\"n\"")));
        for other in [
            r#"{"role":"assistant","content":"é \"x\" "}"#,
            r#"{"role":"user","content":"é \"x\""}"#,
            r#"{"role":"assistant","content":"é \"x\"","reasoning":"hm"}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":"é \"x\""}]}"#,
        ] {
            assert!(!chat_goes_on(ANSWER, &second(other, "")), "{other}");
        }
        assert!(!chat_goes_on(ANSWER, FIRST));
    }

    #[test]
    fn what_was_generated_but_not_said_spoils_an_answer() {
        let assistant = r#"{"role":"assistant","content":"é \"x\""}"#;
        for spoiled in [
            ANSWER.replace("\"role\"", "\"reasoning_content\":\"hm\",\"role\""),
            ANSWER.replace("\"role\"", "\"tool_calls\":[{}],\"role\""),
            ANSWER.replace("\"stop\"", "\"stop\",\"stop_reason\":\"\\n\""),
            ANSWER.replace("\"stop\"", "\"tool_calls\""),
            ANSWER.replace("\"stop\"", "null"),
        ] {
            assert!(!chat_goes_on(&spoiled, &second(assistant, "")), "{spoiled}");
        }
        assert!(chat_goes_on(&ANSWER.replace("\"stop\"", "\"length\""), &second(assistant, "")));
    }

    #[test]
    fn token_ids_prove_themselves() {
        let first = turn(r#"{"model":"m","token_ids":[1,2,3],"sampling_params":{}}"#).unwrap();
        let past = first
            .past(&spoken(r#"{"choices":[{"index":0,"token_ids":[7,8],"finish_reason":"length"}]}"#))
            .unwrap();
        let goes_on =
            |ids: &str| turn(&format!(r#"{{"model":"m","token_ids":{ids}}}"#)).unwrap().goes_on_from(&past);
        assert!(goes_on("[1,2,3,7,8,9]") && goes_on("[1,2,3,7,8]"));
        assert!(!goes_on("[1,2,3,7]") && !goes_on("[1,2,3,8,7,9]"));
        assert!(turn(r#"{"token_ids":[1],"features":{"mm_hashes":{}}}"#).is_none());
        assert!(turn(r#"{"prompt":"x"}"#).is_none());
    }
}
