//! What a turn of a conversation says, reduced to what is needed to tell whether a later one goes on
//! from it without a change.
//!
//! A KV cache that decode kept covers the prompt and what was generated. It fits a later prompt only if
//! that begins with exactly the same tokens (engine contract §4.4). Equal text is no proof: what a model
//! wrote, a tokeniser may split otherwise (seen with vLLM 0.32: another text under a 200).

use xxhash_rust::xxh3::Xxh3;

use super::scan::Object;
use super::spoken::Spoken;

/// Fields of a chat that `/tokenize` understands as `/v1/chat/completions` does.
const RENDERED: [&str; 8] = [
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
];

/// Fields of a chat that have no influence on how its prompt is rendered.
const NOT_RENDERED: [&str; 27] = [
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
    "cache_salt",
    "return_token_ids",
    "tool_choice",
];

/// The prompt of a request.
#[derive(Debug)]
pub struct Turn {
    /// Of what is not among the tokens, but must be equal.
    frame: u128,
    prompt: Prompt,
}

#[derive(Debug)]
enum Prompt {
    Tokens(Vec<u32>),
    /// Only an engine can tell its tokens: the fields that it needs for it, as the body of `/tokenize`.
    Chat(String),
}

/// What a KV cache covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    frame: u128,
    count: usize,
    hash: u128,
}

impl Turn {
    /// The turn in the body of a request. `None` where its tokens can't be known for certain. No engine
    /// knows the fields in `foreign`.
    pub fn of(object: &Object, foreign: &[&str]) -> Option<Self> {
        let frame = frame(object);
        if object.is_set("messages") {
            return Some(Self { frame, prompt: Prompt::Chat(tokenizable(object, foreign)?) });
        }
        // Placeholders of media are the same tokens whatever they stand for.
        let media = ["features", "content_parts"].iter().any(|name| object.is_set(name));
        let ids = object.get("token_ids").or_else(|| object.get("prompt")).filter(|_| !media)?;
        Some(Self { frame, prompt: Prompt::Tokens(serde_json::from_str(ids).ok()?) })
    }

    /// The body with which an engine's `/tokenize` tells the prompt's tokens, if they are not known yet.
    pub fn question(&self) -> Option<&str> {
        match &self.prompt {
            Prompt::Tokens(_) => None,
            Prompt::Chat(body) => Some(body),
        }
    }

    /// What the first `computed` tokens of prompt and answer are.
    pub fn past(&self, spoken: &Spoken, computed: usize) -> Option<Past> {
        let prompt = match &self.prompt {
            Prompt::Tokens(prompt) => prompt,
            Prompt::Chat(_) => spoken.prompt()?,
        };
        let (count, hash) = hash(prompt.iter().chain(spoken.tokens()?).take(computed));
        (count == computed).then_some(Past { frame: self.frame, count, hash })
    }

    /// Whether this turn's prompt begins with all that `past` covers. `told` is an engine's answer to
    /// [`Turn::question`].
    pub fn goes_on_from(&self, past: &Past, told: &[u32]) -> bool {
        let prompt = match &self.prompt {
            Prompt::Tokens(prompt) => prompt,
            Prompt::Chat(_) => told,
        };
        let begins = |begin: &[u32]| hash(begin.iter()).1 == past.hash;
        self.frame == past.frame && prompt.get(..past.count).is_some_and(begins)
    }
}

/// The same tokens make another KV cache under another model, or under another salt.
fn frame(object: &Object) -> u128 {
    let mut hasher = Xxh3::new();
    for name in ["model", "cache_salt"] {
        let value = object.get(name).unwrap_or("null");
        hasher.update(&(value.len() as u64).to_le_bytes());
        hasher.update(value.as_bytes());
    }
    hasher.digest128()
}

fn hash<'a>(tokens: impl Iterator<Item = &'a u32>) -> (usize, u128) {
    let (mut hasher, mut count) = (Xxh3::new(), 0);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
        count += 1;
    }
    (count, hasher.digest128())
}

/// The chat as `/tokenize` takes it, if nothing else could shape its prompt.
fn tokenizable(object: &Object, foreign: &[&str]) -> Option<String> {
    let mut body = String::from("{");
    for i in 0..object.len() {
        let (name, _, value) = object.member(i);
        let value = std::str::from_utf8(&object.bytes()[value]).ok()?;
        if RENDERED.contains(&name) {
            let comma = if body.len() > 1 { "," } else { "" };
            body.push_str(&format!("{comma}\"{name}\":{value}"));
        } else if ![&NOT_RENDERED, foreign].iter().any(|known| known.contains(&name)) && value != "null" {
            return None;
        }
    }
    // Parts of a message may be media.
    let media = |text: &str| {
        text.contains("_url\"") || text.contains("\"input_audio\"") || text.contains("_embeds\"")
    };
    (!object.get("messages").is_some_and(media)).then(|| body + "}")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn turn(body: &str) -> Option<Turn> {
        Turn::of(&Object::scan(Bytes::copy_from_slice(body.as_bytes())).unwrap(), &["thread"])
    }

    fn spoken(answer: &str) -> Spoken {
        let mut spoken = Spoken::default();
        spoken.hear_answer(answer.as_bytes());
        spoken
    }

    #[test]
    fn a_prompt_of_token_ids_goes_on_if_it_begins_with_all_that_was_computed() {
        let answer = spoken(r#"{"choices":[{"index":0,"token_ids":[7,8],"finish_reason":"length"}]}"#);
        for (first, next) in [("token_ids", "token_ids"), ("prompt", "token_ids"), ("prompt", "prompt")] {
            let first =
                turn(&format!(r#"{{"model":"m","{first}":[1,2,3],"sampling_params":{{}}}}"#)).unwrap();
            let past = first.past(&answer, 4).unwrap();
            let goes_on = |model: &str, ids: &str| {
                turn(&format!(r#"{{"model":"{model}","{next}":{ids}}}"#)).unwrap().goes_on_from(&past, &[])
            };
            assert!(
                goes_on("m", "[1,2,3,7,8,9]") && goes_on("m", "[1,2,3,7]"),
                "the last one is not computed yet"
            );
            assert!(!goes_on("m", "[1,2,3]") && !goes_on("m", "[1,2,3,8,7]") && !goes_on("n", "[1,2,3,7,8]"));
            assert!(first.past(&answer, 6).is_none(), "more than there is");
        }
        assert!(turn(r#"{"token_ids":[1],"features":{"mm_hashes":{}}}"#).is_none());
        assert!(turn(r#"{"prompt":"x"}"#).is_none());
    }

    #[test]
    fn a_chats_tokens_are_told_by_an_engine() {
        let chat =
            turn(r#"{"messages":[{"role":"user","content":"hi"}],"model":"m","max_tokens":3,"tools":[ ]}"#)
                .unwrap();
        let question = r#"{"messages":[{"role":"user","content":"hi"}],"model":"m","tools":[ ]}"#;
        assert_eq!(chat.question(), Some(question));
        let past =
            chat.past(&spoken(r#"{"prompt_token_ids":[1,2],"choices":[{"token_ids":[5,6]}]}"#), 3).unwrap();
        assert!(chat.goes_on_from(&past, &[1, 2, 5, 9]));
        assert!(!chat.goes_on_from(&past, &[1, 2, 4, 5]) && !chat.goes_on_from(&past, &[]));
        assert!(chat.past(&spoken(r#"{"choices":[{"token_ids":[5,6]}]}"#), 1).is_none());
    }

    #[test]
    fn what_tokenize_would_not_see_leaves_a_chat_alone() {
        for body in [
            r#"{"messages":[],"reasoning_effort":"high"}"#,
            r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#,
            r#"{"messages":[],"documents":[1]}"#,
        ] {
            assert!(turn(body).is_none(), "{body}");
        }
        assert!(turn(r#"{"messages":[],"reasoning_effort":null,"thread":7}"#).is_some());
    }
}
