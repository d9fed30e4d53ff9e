//! Which requests go through renderers, and which of their answers can be gone on with.

use super::*;

fn object(text: &str) -> Object {
    Object::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

#[test]
fn what_token_ids_alone_can_answer_goes_through() {
    for body in [
        r#"{"prompt":"a","n":3,"seed":1,"stop":[],"stop_token_ids":[2],"logprobs":null}"#,
        r#"{"messages":[],"tools":[{}],"logprobs":false,"stop":null,"stream":true}"#,
        r#"{"prompt":["only one"]}"#,
    ] {
        let dialect = if body.contains("messages") { Dialect::Chat } else { Dialect::Completion };
        assert_eq!(needs_text(&object(body), dialect), None, "{body}");
    }
    for body in [
        r#"{"stop":"x"}"#,
        r#"{"stop":["x"]}"#,
        r#"{"logprobs":0}"#,
        r#"{"return_token_ids":true}"#,
        r#"{"use_beam_search":true}"#,
        r#"{"best_of":2}"#,
        r#"{"echo":true}"#,
        r#"{"prompt_logprobs":0}"#,
        r#"{"prompt":["a","b"]}"#,
        r#"{"prompt_embeds":"x"}"#,
    ] {
        assert!(needs_text(&object(body), Dialect::Completion).is_some(), "{body}");
    }
    assert!(needs_text(&object(r#"{"logprobs":true}"#), Dialect::Chat).is_some());
}

fn usable(text: &str, dialect: Dialect) -> Result<String, &'static str> {
    let made = super::usable(&Bytes::copy_from_slice(text.as_bytes()), dialect)?;
    Ok(String::from_utf8(made.bytes().to_vec()).unwrap())
}

#[test]
fn a_limit_that_was_left_out_is_the_default() {
    let made = r#"{"token_ids":[1,2],"sampling_params":{"max_tokens":12},"x":1.0}"#;
    assert_eq!(usable(made, Dialect::Chat).as_deref(), Ok(made));
    let silent = r#"{"token_ids":[1,2],"sampling_params":{"n":2},"x":1.0}"#;
    let limited = r#"{"token_ids":[1,2],"sampling_params":{"n":2,"max_tokens":16},"x":1.0}"#;
    assert_eq!(usable(silent, Dialect::Chat).as_deref(), Ok(limited));
    assert_eq!(usable(&format!("[{silent}]"), Dialect::Completion).as_deref(), Ok(limited));
}

#[test]
fn what_no_engine_should_get_is_not_gone_on_with() {
    let good =
        r#"{"token_ids":[1],"sampling_params":{},"features":{"mm_hashes":{},"kwargs_data":{"image":["a"]}}}"#;
    assert!(usable(good, Dialect::Chat).is_ok());
    for (text, dialect) in [
        (&*good.replace(r#"{"image":["a"]}"#, "null"), Dialect::Chat),
        (r#"{"token_ids":[],"sampling_params":{}}"#, Dialect::Chat),
        (r#"{"sampling_params":{}}"#, Dialect::Chat),
        (r#"{"token_ids":[1]}"#, Dialect::Chat),
        ("[]", Dialect::Chat),
        ("[]", Dialect::Completion),
        (&*format!("[{good},{good}]"), Dialect::Completion),
        (good, Dialect::Completion),
        ("no JSON", Dialect::Completion),
    ] {
        assert!(usable(text, dialect).is_err(), "{text}");
    }
}
