//! What prefill answered beside KV transfer params, as far as connectors need it.

use serde::Deserialize;

use crate::Request;

/// Whether prefill has answered. It has not while both legs are prepared to
/// start together.
pub fn has_arrived(request: &Request<'_>) -> bool {
    ["choices", "usage"].iter().any(|field| request.prefill_field(field).is_some())
}

/// Whether prefill's token ended the request by its length: some connectors
/// keep the KV cache of no other. No for an answer that does not say so, or
/// whose choices are longer than the 64 KiB that a policy gets to see.
pub fn ended_by_length(request: &Request<'_>) -> bool {
    #[derive(Deserialize)]
    struct Choice {
        finish_reason: Option<String>,
    }
    let choices = request.prefill_field("choices");
    let choices: Vec<Choice> =
        choices.and_then(|choices| serde_json::from_str(&choices).ok()).unwrap_or_default();
    !choices.is_empty() && choices.iter().all(|choice| choice.finish_reason.as_deref() == Some("length"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn seen(answer: &str) -> (bool, bool) {
        let request = testing::request("/v1/completions").prefill_answer(answer);
        (has_arrived(&request.as_request()), ended_by_length(&request.as_request()))
    }

    #[test]
    fn an_answer_counts_as_ended_by_its_length_only_if_it_says_so() {
        assert_eq!(seen("{}"), (false, false));
        assert_eq!(
            seen(r#"{"choices": [{"finish_reason": "length", "text": "x"}], "usage": {}}"#),
            (true, true)
        );
        for other in [
            r#"{"usage": {}}"#,
            r#"{"choices": []}"#,
            r#"{"choices": [{"finish_reason": "stop"}]}"#,
            r#"{"choices": [{"finish_reason": null}]}"#,
            r#"{"choices": [{}]}"#,
            r#"{"choices": 7}"#,
        ] {
            assert_eq!(seen(other), (true, false), "{other}");
        }
    }
}
