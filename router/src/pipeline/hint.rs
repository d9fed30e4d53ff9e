//! Says what to do where an engine refuses to deal in token ids.

use bytes::Bytes;
use edge_router_policy::Edit;
use http::StatusCode;

use super::answer::{Answer, Source};
use super::parse::{GENERATE, Parsed};
use crate::body::scan::Object;
use crate::body::splice::splice;

/// How vLLM's refusal begins (engine contract §2).
const REFUSAL: &str = "Scale-out endpoints are disabled";

const FOR_GENERATE: &str =
    "Behind edge-router: start prefill and decode engines with --enable-scale-out or --tokens-only.";
const FOR_RENDER: &str = "Behind edge-router: give the router a `vllm launch render` pool with --render, or start \
    the decode engines with --enable-scale-out.";

/// An engine's answer, with a sentence more in its message if it is that refusal.
pub(super) fn of_engine(parsed: &Parsed, answer: Answer) -> Answer {
    match parsed.client.endpoint.as_str() {
        GENERATE => hinted(answer, FOR_GENERATE),
        _ if parsed.renders => hinted(answer, FOR_RENDER),
        _ => answer,
    }
}

/// The same of an engine that was given as a renderer.
pub(super) fn of_renderer(answer: Answer) -> Answer {
    hinted(answer, FOR_RENDER)
}

fn hinted(mut answer: Answer, hint: &str) -> Answer {
    if let (StatusCode::FORBIDDEN, Source::Whole(body, _)) = (answer.head.status, &mut answer.body)
        && let Some(hinted) = with(body, hint)
    {
        *body = hinted;
    }
    answer
}

fn with(body: &Bytes, hint: &str) -> Option<Bytes> {
    let set = |object: &Object, name: &'static str, value: String| {
        splice(object, &[Edit::Set { name: name.into(), value: value.into() }]).to_bytes()
    };
    let answer = Object::scan(body.clone()).ok()?;
    let error = Object::scan(body.slice_ref(answer.get("error")?.as_bytes())).ok()?;
    let message = error.get_str("message").filter(|message| message.starts_with(REFUSAL))?;
    let message = serde_json::Value::from(format!("{message} {hint}")).to_string();
    let error = set(&error, "message", message);
    Some(set(&answer, "error", String::from_utf8(error.to_vec()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_refusal_gets_a_hint() {
        let with = |body: &'static str| with(&Bytes::from_static(body.as_bytes()), "Do this.");
        let refusal = r#"{"error":{"message":"Scale-out endpoints are disabled. Restart.","type":"PermissionDeniedError","param":null,"code":403}}"#;
        let hinted = refusal.replace("Restart.", "Restart. Do this.");
        assert_eq!(with(refusal).as_deref(), Some(hinted.as_bytes()));
        for other in [r#"{"error":{"message":"no"}}"#, r#"{"error":"Unauthorized"}"#, "{}", "403"] {
            assert_eq!(with(other), None, "{other}");
        }
    }
}
