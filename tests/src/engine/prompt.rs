//! From a request to the token ids of its prompts.

use serde_json::{Value, json};

use super::call::Endpoint;
use super::config::Config;
use super::fields::Fields;
use super::rejection::Rejection;
use super::template::render;
use super::tokenizer::{VOCABULARY, tokenize};

/// In which field an endpoint expects its prompt; read before anything else, as validation runs first.
pub(crate) enum Form<'a> {
    Completion,
    Conversation(&'a [Value]),
    Message(&'a [Value]),
    Ids(&'a [Value]),
}

impl<'a> Form<'a> {
    pub(crate) fn read(endpoint: Endpoint, fields: &'a Fields) -> Result<Self, Rejection> {
        let required = |name| match fields.list(name)? {
            Some(items) => Ok(items.as_slice()),
            None => Err(fields.missing(name)),
        };
        Ok(match endpoint {
            Endpoint::Completions => Self::Completion,
            Endpoint::Chat => Self::Conversation(required("messages")?),
            Endpoint::Messages => Self::Message(required("messages")?),
            Endpoint::Generate => Self::Ids(required("token_ids")?),
        })
    }

    /// The token ids of each prompt, none of them too long.
    pub(crate) fn prompts(&self, fields: &Fields, config: &Config) -> Result<Vec<Vec<u32>>, Rejection> {
        let prompts = match self {
            Self::Completion => completion_prompts(fields)?,
            Self::Conversation(messages) => vec![chat_prompt(fields, messages, config)?],
            Self::Message(messages) => {
                let system = fields.get("system").map(|text| json!({ "role": "system", "content": text }));
                let messages: Vec<Value> = system.into_iter().chain(messages.iter().cloned()).collect();
                vec![chat_prompt(fields, &messages, config)?]
            }
            Self::Ids(ids) => vec![token_ids(ids)?],
        };
        check_lengths(&prompts, config)?;
        Ok(prompts)
    }
}

fn completion_prompts(fields: &Fields) -> Result<Vec<Vec<u32>>, Rejection> {
    let none = || {
        let message = "Either prompt or prompt_embeds must be provided and non-empty.";
        Rejection::bad_field("prompt", message, None)
    };
    match fields.get("prompt").ok_or_else(none)? {
        Value::String(text) if text.is_empty() => Err(none()),
        Value::String(text) => Ok(vec![tokenize(text)]),
        Value::Array(items) if items.is_empty() => {
            Err(Rejection::bad_request("You must pass at least one prompt"))
        }
        // A flat list of ids is one prompt.
        Value::Array(ids) if ids.iter().all(Value::is_number) => Ok(vec![token_ids(ids)?]),
        Value::Array(prompts) => prompts
            .iter()
            .map(|prompt| match prompt {
                Value::String(text) => Ok(tokenize(text)),
                Value::Array(ids) => token_ids(ids),
                _ => Err(none()),
            })
            .collect(),
        _ => Err(none()),
    }
}

fn token_ids(ids: &[Value]) -> Result<Vec<u32>, Rejection> {
    ids.iter()
        .map(|id| {
            let known = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < VOCABULARY);
            known.ok_or_else(|| Rejection::bad_request(format!("Token id {id} is out of vocabulary")))
        })
        .collect()
}

fn chat_prompt(fields: &Fields, messages: &[Value], config: &Config) -> Result<Vec<u32>, Rejection> {
    if messages.is_empty() {
        let message = "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(Rejection::bad_request(message));
    }
    let tools = fields.get("tools");
    if tools.is_some() && !config.auto_tools && fields.text("tool_choice").unwrap_or("auto") == "auto" {
        let message =
            "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set";
        return Err(Rejection::bad_request(message));
    }
    Ok(tokenize(&render(messages, tools)))
}

fn check_lengths(prompts: &[Vec<u32>], config: &Config) -> Result<(), Rejection> {
    let limit = config.max_model_len;
    let Some(tokens) = prompts.iter().map(Vec::len).find(|len| *len > limit) else { return Ok(()) };
    let message = format!(
        "This model's maximum context length is {limit} tokens. However, your prompt contains {tokens} input tokens, \
         which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    );
    Err(Rejection::bad_field("input_tokens", &message, Some(&tokens.to_string())))
}
