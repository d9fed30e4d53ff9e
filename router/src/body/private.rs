//! Private fields beside the top level: engines take what further arguments hold for the request's own
//! fields.
//!
//! Coordinates of KV caches that a client names there would make an engine dial whom the client likes, or
//! end it (engine contract §9, §14.1).

use edge_router_policy::Edit;

use super::scan::Object;
use super::splice::splice;
use super::sse::{PRIVATE_FIELDS, without_private_fields};

/// Ways to further arguments: of the OpenAI dialects, and of requests in token ids. vLLM has them all in
/// `SamplingParams.extra_args`, which is where its connectors look (`vllm/v1/request.py`).
const FURTHER: [&[&str]; 2] = [&["vllm_xargs"], &["sampling_params", "extra_args"]];

/// The request with no private field among its further arguments: itself, if there is none.
pub fn without_further_private_fields(object: Object) -> Object {
    FURTHER.iter().fold(object, |object, way| cleaned(&object, way).unwrap_or(object))
}

/// The object without the private fields at the end of `way`. `None` if there are none.
fn cleaned(object: &Object, way: &[&'static str]) -> Option<Object> {
    let Some((name, rest)) = way.split_first() else {
        let private = (0..object.len()).any(|i| PRIVATE_FIELDS.contains(&object.member(i).0));
        return private.then(|| Object::scan(without_private_fields(object)).ok()).flatten();
    };
    let inner = Object::scan(object.bytes().slice_ref(object.get(name)?.as_bytes())).ok()?;
    let value = String::from_utf8(cleaned(&inner, rest)?.bytes().to_vec()).ok()?;
    let edit = Edit::Set { name: (*name).into(), value: value.into() };
    Object::scan(splice(object, &[edit]).to_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn cleaned(body: &str) -> Bytes {
        let object = Object::scan(Bytes::copy_from_slice(body.as_bytes())).unwrap();
        without_further_private_fields(object).bytes().clone()
    }

    #[test]
    fn private_fields_go_and_the_rest_stays() {
        for (body, expected) in [
            (
                r#"{"seed": 1.0,"vllm_xargs": {"kv_transfer_params":"x", "a":1e0},"n":1}"#,
                r#"{"seed": 1.0,"vllm_xargs": { "a":1e0},"n":1}"#,
            ),
            (
                r#"{"sampling_params":{"n": 1.0,"extra\u005fargs":{"ec\u005ftransfer_params":{},"b":[]}}}"#,
                r#"{"sampling_params":{"n": 1.0,"extra\u005fargs":{"b":[]}}}"#,
            ),
            (
                r#"{"vllm_xargs":{"kv_transfer_params":1},"vllm_xargs":{"kv_transfer_params":2,"kv_transfer_params":3}}"#,
                r#"{"vllm_xargs":{}}"#,
            ),
        ] {
            assert_eq!(cleaned(body), expected, "{body}");
        }
    }

    #[test]
    fn a_request_without_any_is_not_copied() {
        for body in [
            r#"{"vllm_xargs":{"a":1},"sampling_params":{"extra_args":null}}"#,
            r#"{"vllm_xargs":7,"sampling_params":[],"kv_transfer_params":1}"#,
        ] {
            let object = Object::scan(Bytes::copy_from_slice(body.as_bytes())).unwrap();
            let bytes = object.bytes().clone();
            assert_eq!(without_further_private_fields(object).bytes().as_ptr(), bytes.as_ptr());
        }
    }
}
