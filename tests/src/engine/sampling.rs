//! Which token comes next, and when the generation ends.

use serde_json::Value;

use super::digest::mix;
use super::fields::Fields;
use super::rejection::Rejection;
use super::tokenizer::{EOS, detokenize, sampled};

/// A request that names no limit ends by itself at one token in so many.
const MEAN_LENGTH: u64 = 32;

/// How to sample.
#[derive(Clone, Debug)]
pub(crate) struct Sampling {
    pub(crate) max_tokens: usize,
    pub(crate) min_tokens: usize,
    pub(crate) seed: u64,
    ends_by_itself: bool,
    ignore_eos: bool,
    /// A token that `logit_bias` leaves no alternative to.
    forced: Option<u32>,
    stop_token_ids: Vec<u32>,
    stop: Vec<String>,
}

/// Why a generation has stopped before its limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stop {
    /// `stop_reason` of the answer: the token id or the text that was asked for; null at the end of sequence.
    pub(crate) reason: Value,
    /// How many bytes of the text so far belong to the answer, if a stop text ends it.
    pub(crate) text_len: Option<usize>,
}

impl Sampling {
    /// Reads what concerns sampling; `limits` are the maximum, the minimum, and whether the request named a maximum.
    pub(crate) fn read(fields: &Fields, limits: (usize, usize, bool)) -> Result<Self, Rejection> {
        let (max_tokens, min_tokens, named) = limits;
        if let Some(temperature) = fields.number("temperature")?.filter(|t| *t < 0.0) {
            let message = format!("temperature must be non-negative, got {temperature:?}.");
            return Err(Rejection::bad_field("temperature", &message, Some(&format!("{temperature:?}"))));
        }
        if let Some(top_p) = fields.number("top_p")?.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            let message = format!("top_p must be in (0, 1], got {top_p:?}.");
            return Err(Rejection::bad_field("top_p", &message, Some(&format!("{top_p:?}"))));
        }
        let stop = match fields.get("stop") {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let ids = fields.list("stop_token_ids")?.map_or(&[][..], Vec::as_slice);
        Ok(Self {
            max_tokens,
            min_tokens,
            seed: fields.integer("seed")?.unwrap_or(0).cast_unsigned(),
            ends_by_itself: !named,
            ignore_eos: fields.flag("ignore_eos"),
            forced: fields.object("logit_bias")?.and_then(forced_token),
            stop_token_ids: ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect(),
            stop,
        })
    }

    /// The token at place `generated` that `draw` stands for.
    pub(crate) fn token(&self, draw: u64, generated: usize) -> u32 {
        // Until then the tokens that end a text are masked, whatever bias they have.
        let masked = generated < self.min_tokens;
        let may_end = self.ends_by_itself && !self.ignore_eos && !masked;
        match self.forced.filter(|token| !masked || *token != EOS && !self.stop_token_ids.contains(token)) {
            Some(token) => token,
            None if may_end && mix(draw, 7).is_multiple_of(MEAN_LENGTH) => EOS,
            None => sampled(draw),
        }
    }

    /// Whether the generation ends with `token`, the latest of `generated` tokens whose text is `text`.
    pub(crate) fn stop(&self, token: u32, generated: usize, text: &str) -> Option<Stop> {
        if generated <= self.min_tokens.saturating_sub(1) {
            return None;
        }
        if token == EOS && !self.ignore_eos {
            return Some(Stop { reason: Value::Null, text_len: None });
        }
        if self.stop_token_ids.contains(&token) {
            // Its text is no part of the answer.
            let before = text.len().saturating_sub(detokenize(&[token]).len());
            return Some(Stop { reason: Value::from(token), text_len: Some(before) });
        }
        self.stop.iter().find_map(|stop| {
            let at = text.find(stop.as_str())?;
            Some(Stop { reason: Value::from(stop.as_str()), text_len: Some(at) })
        })
    }
}

/// A bias of 100 leaves no other token a chance.
fn forced_token(bias: &Value) -> Option<u32> {
    let bias = bias.as_object()?;
    bias.iter().find(|(_, bias)| bias.as_f64() >= Some(100.0)).and_then(|(token, _)| token.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue, header};
    use serde_json::json;

    fn sampling(fields: &Value, limits: (usize, usize, bool)) -> Sampling {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
        let fields = Fields::parse(&headers, &Bytes::from(fields.to_string())).ok().unwrap();
        Sampling::read(&fields, limits).ok().unwrap()
    }

    #[test]
    fn only_a_request_without_a_limit_ends_by_itself() {
        let open = sampling(&json!({}), (2048, 0, false));
        assert!((0..1000).any(|draw| open.token(draw, 0) == EOS));
        let limited = sampling(&json!({}), (16, 0, true));
        assert!((0..1000).all(|draw| limited.token(draw, 0) != EOS));
    }

    #[test]
    fn stop_texts_end_the_answer_before_them() {
        let sampling = sampling(&json!({"stop": "END", "stop_token_ids": [9]}), (16, 0, true));
        assert_eq!(sampling.stop(5, 3, "a b").map(|s| s.reason), None);
        assert_eq!(sampling.stop(5, 3, "a bEND").and_then(|s| s.text_len), Some(3));
        assert_eq!(sampling.stop(9, 3, "a b").map(|s| s.reason), Some(json!(9)));
    }

    #[test]
    fn min_tokens_hold_a_stop_back() {
        let sampling = sampling(&json!({"logit_bias": {"1": 100}}), (16, 2, true));
        assert!(sampling.token(3, 0) != EOS && sampling.token(3, 1) != EOS, "masked");
        assert_eq!(sampling.token(3, 2), EOS);
        assert_eq!(sampling.stop(EOS, 1, ""), None);
        assert!(sampling.stop(EOS, 2, "").is_some());
    }
}
