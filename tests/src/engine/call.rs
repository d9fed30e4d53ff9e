//! A request to generate, as the engine understands it: validated, rendered, tokenised.

use http::HeaderMap;
use serde_json::Value;

use super::config::Config;
use super::digest::{mix_text, random};
use super::fields::Fields;
use super::handoff::Handoff;
use super::prompt::Form;
use super::rejection::Rejection;
use super::sampling::Sampling;

const KV_PARAMS: &str = "kv_transfer_params";

/// Which of the generating endpoints was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Completions,
    Chat,
    /// Anthropic's dialect of a chat.
    Messages,
    /// Token ids in, token ids out.
    Generate,
}

impl Endpoint {
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/completions" => Some(Self::Completions),
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/messages" => Some(Self::Messages),
            "/inference/v1/generate" => Some(Self::Generate),
            _ => None,
        }
    }

    fn id_prefix(self) -> &'static str {
        match self {
            Self::Completions => "cmpl",
            Self::Chat | Self::Messages => "chatcmpl",
            Self::Generate => "generate-tokens",
        }
    }
}

/// A valid request.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) endpoint: Endpoint,
    /// The response's `id`.
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) n: usize,
    pub(crate) sampling: Sampling,
    pub(crate) salt: u64,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) return_token_ids: bool,
    pub(crate) echo: bool,
    /// How many alternatives a token's log probabilities list; `None` if they were not asked for.
    pub(crate) logprobs: Option<usize>,
    /// Whether the prompt's log probabilities are wanted, for which nothing may come from a cache.
    pub(crate) recompute: bool,
    pub(crate) handoff: Handoff,
    /// As in `X-data-parallel-rank`; not yet checked against the number of ranks.
    pub(crate) rank: Option<i64>,
}

impl Call {
    /// Reads and checks a request; the order of the checks is the engine's.
    pub(crate) fn parse(
        endpoint: Endpoint,
        headers: &HeaderMap,
        fields: &Fields,
        config: &Config,
    ) -> Result<Self, Rejection> {
        let form = Form::read(endpoint, fields)?;
        let id = format!("{}-{}", endpoint.id_prefix(), request_id(headers, fields));
        let nested = fields.nested("sampling_params")?.filter(|_| endpoint == Endpoint::Generate);
        // The connectors look into the sampling parameters; the request's own field is put there on the way.
        let further = nested.as_ref().and_then(|sampling| sampling.get("extra_args")?.get(KV_PARAMS));
        let handoff = Handoff::of(config, &id, fields.object(KV_PARAMS)?.or(further));
        let how = nested.as_ref().unwrap_or(fields);
        let asked = Limits::read(endpoint, how)?;
        let model = fields.text("model").unwrap_or(&config.model).to_owned();
        if model != config.model {
            return Err(Rejection::no_such_model(&model, &config.model));
        }
        let stream = fields.flag("stream");
        let options = fields.object("stream_options")?;
        if options.is_some() && !stream {
            let message = "Stream options can only be defined when `stream=True`.";
            return Err(Rejection::bad_field("stream_options", message, None));
        }
        let option = |name| options.and_then(|o| o.get(name)).and_then(Value::as_bool).unwrap_or(false);
        let prompts = form.prompts(fields, config)?;
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let echo = endpoint == Endpoint::Completions && fields.flag("echo");
        let sampling = Sampling::read(how, asked.resolve(endpoint, longest, echo, config)?)?;
        let logprobs = logprobs(endpoint, how)?;
        Ok(Self {
            endpoint,
            id,
            model,
            prompts,
            n: how.integer("n")?.unwrap_or(1).clamp(1, 128) as usize,
            sampling,
            salt: fields.text("cache_salt").map_or(0, |salt| mix_text(0, salt)),
            stream,
            include_usage: option("include_usage"),
            continuous_usage: option("include_usage") && option("continuous_usage_stats"),
            return_token_ids: fields.flag("return_token_ids"),
            echo,
            logprobs,
            recompute: how.get("prompt_logprobs").is_some() || echo && logprobs.is_some(),
            handoff,
            rank: header(headers, "x-data-parallel-rank").and_then(|rank| rank.parse().ok()),
        })
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The header beats the body's `request_id`.
fn request_id(headers: &HeaderMap, fields: &Fields) -> String {
    let given = header(headers, "x-request-id").or_else(|| fields.text("request_id"));
    given.map_or_else(|| format!("{:016x}", random()), str::to_owned)
}

/// How many tokens a request asks for.
struct Limits {
    max_tokens: Option<i64>,
    min_tokens: i64,
}

impl Limits {
    fn read(endpoint: Endpoint, fields: &Fields) -> Result<Self, Rejection> {
        let mut max_tokens = fields.integer("max_tokens")?;
        if endpoint == Endpoint::Chat {
            max_tokens = fields.integer("max_completion_tokens")?.or(max_tokens);
        }
        Ok(Self { max_tokens, min_tokens: fields.integer("min_tokens")?.unwrap_or(0) })
    }

    /// The limits as used: `(max, min, whether the request named a maximum)`.
    fn resolve(
        &self,
        endpoint: Endpoint,
        prompt: usize,
        echo: bool,
        config: &Config,
    ) -> Result<(usize, usize, bool), Rejection> {
        let room = config.max_model_len.saturating_sub(prompt);
        // Sampling parameters without a maximum mean as many tokens as fit, which renderers don't mean.
        let has_default = endpoint == Endpoint::Completions;
        let default = if has_default { 16 } else { room as i64 };
        let max = self.max_tokens.unwrap_or(default);
        let shown = max.to_string();
        if max < 1 && !(echo && max == 0) {
            let message = format!("max_tokens must be at least 1, got {max}.");
            return Err(Rejection::bad_field("max_tokens", &message, Some(&shown)));
        }
        if max > room as i64 {
            let limit = config.max_model_len;
            let message = format!(
                "max_tokens={max} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
            );
            return Err(Rejection::bad_field("max_tokens", &message, Some(&shown)));
        }
        let min = self.min_tokens;
        if min > max {
            let message = format!("min_tokens must be less than or equal to max_tokens={max}, got {min}.");
            return Err(Rejection::bad_request(message));
        }
        let named = self.max_tokens.is_some() || has_default;
        Ok((max as usize, min.max(0) as usize, named))
    }
}

fn logprobs(endpoint: Endpoint, fields: &Fields) -> Result<Option<usize>, Rejection> {
    let count = match endpoint {
        Endpoint::Completions => fields.integer("logprobs")?,
        Endpoint::Chat if fields.flag("logprobs") => Some(fields.integer("top_logprobs")?.unwrap_or(0)),
        Endpoint::Chat | Endpoint::Messages | Endpoint::Generate => None,
    };
    Ok(count.map(|count| count.clamp(0, 20) as usize))
}
