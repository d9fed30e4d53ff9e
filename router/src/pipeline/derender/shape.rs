//! The shapes of answers: what a renderer gets of an engine's, and what a client gets of a renderer's.

use bytes::Bytes;
use edge_router_policy::Edit;
use serde_json::value::RawValue;

use crate::body::scan::Object;
use crate::body::splice::splice;

/// The choices without the token that ended each, if one did: an end of sequence, or one of the request's
/// stop tokens. Engines leave its text out; a renderer can't know what it was. Of answers that came whole,
/// renderers want at least one token: [`silenced`] sees to the rest. `None` if nothing changes.
pub(super) fn without_last_words(choices: &str, whole: bool) -> Option<String> {
    let mut changed = false;
    let choices = each(choices, |choice| {
        let ids = choice.get("token_ids").filter(|_| stopped(&choice));
        let rest = ids.and_then(|ids| match ids.rsplit_once(',') {
            Some((before, _)) => Some(format!("{before}]")),
            None => (!whole).then(|| "[]".to_owned()),
        });
        let edit = rest.map(|rest| set("token_ids", rest));
        changed |= edit.is_some();
        Some(splice(&choice, edit.as_slice()).to_bytes())
    })?;
    changed.then_some(choices)
}

fn stopped(choice: &Object) -> bool {
    choice.get_str("finish_reason").is_some_and(|reason| reason == "stop")
}

/// A renderer's choices, with nothing said where the engine's hold no token but the one that ended them.
/// `None` if nothing changes.
pub(super) fn silenced(choices: &str, generated: &str) -> Option<String> {
    let mut mute = Vec::new();
    each(generated, |choice| {
        let alone = choice.get("token_ids").is_some_and(|ids| !ids.contains(','));
        mute.push(alone && stopped(&choice));
        Some(Bytes::new())
    })?;
    if !mute.contains(&true) {
        return None;
    }
    let mut mute = mute.into_iter();
    each(choices, |choice| {
        let edit = mute.next().unwrap_or(false).then(|| nothing_said(&choice)).flatten();
        Some(splice(&choice, edit.as_slice()).to_bytes())
    })
}

fn nothing_said(choice: &Object) -> Option<Edit> {
    let Some(message) = choice.get("message") else { return Some(set("text", r#""""#.into())) };
    let message = Object::scan(Bytes::copy_from_slice(message.as_bytes())).ok()?;
    let message = splice(&message, &[set("content", r#""""#.into())]).to_bytes();
    Some(set("message", String::from_utf8(message.to_vec()).ok()?))
}

/// What stays the same in all events of an answer.
#[derive(Debug)]
pub(super) struct Heading {
    /// JSON.
    pub(super) id: String,
    pub(super) object: &'static str,
    /// Seconds since the epoch.
    pub(super) created: u64,
    /// JSON.
    pub(super) model: String,
}

impl Heading {
    /// An event with these choices and this usage, both JSON.
    pub(super) fn event(&self, choices: &str, usage: Option<&str>) -> String {
        let Self { id, object, created, model } = self;
        let usage = usage.map(|usage| format!(r#","usage":{usage}"#)).unwrap_or_default();
        format!(
            "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\"choices\":{choices}{usage}}}\n\n"
        )
    }
}

/// A chat's choices in the shape that engines stream them: who speaks, in an event before what is said, and
/// no key of a delta that says nothing. A choice that adds nothing is left out if it is not `plain`: then it
/// is a parser's, which waits for more. `None` if they are no choices.
pub(super) fn chat(choices: &str, plain: bool) -> Option<(Option<String>, Option<String>)> {
    let mut speaks = false;
    let said = each(choices, |choice| {
        let delta = Object::scan(choice.bytes().slice_ref(choice.get("delta")?.as_bytes())).ok()?;
        speaks |= delta.is_set("role");
        let mut edits = vec![Edit::Remove("role".into())];
        let mut empty = true;
        for at in 0..delta.len() {
            let (name, _, _) = delta.member(at);
            match delta.get(name) {
                Some("null" | "[]") => edits.push(Edit::Remove(name.to_owned().into())),
                _ => empty &= name == "role",
            }
        }
        if empty && !plain && !choice.is_set("finish_reason") {
            return Some(Bytes::new());
        }
        if empty {
            edits.push(set("content", r#""""#.into()));
        }
        let delta = String::from_utf8(splice(&delta, &edits).to_bytes().to_vec()).ok()?;
        Some(splice(&choice, &[set("delta", delta)]).to_bytes())
    })?;
    let role = if speaks { Some(each(choices, |choice| Some(role(&choice).into()))?) } else { None };
    Some((role, (said != "[]").then_some(said)))
}

fn role(choice: &Object) -> String {
    let index = choice.get("index").unwrap_or("0");
    format!(
        r#"{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}"#
    )
}

/// Sets a field to a JSON value.
pub(super) fn set(name: &'static str, value: String) -> Edit {
    Edit::Set { name: name.into(), value: value.into() }
}

/// The list with each object of it changed; those that become empty are left out.
fn each(list: &str, mut change: impl FnMut(Object) -> Option<Bytes>) -> Option<String> {
    let mut out = String::from("[");
    for item in serde_json::from_str::<Vec<&RawValue>>(list).ok()? {
        let object = Object::scan(Bytes::copy_from_slice(item.get().as_bytes())).ok()?;
        let changed = change(object)?;
        if !changed.is_empty() {
            out.push_str(if out.len() > 1 { "," } else { "" });
            out.push_str(std::str::from_utf8(&changed).ok()?);
        }
    }
    out.push(']');
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_that_ends_an_answer_is_taken_out() {
        let cut = |choices: &str| without_last_words(choices, true);
        let choices = r#"[{"index":0,"finish_reason":"stop","token_ids":[5, 6,2]},{"index":1,"finish_reason":"length","token_ids":[7,2]}]"#;
        assert_eq!(cut(choices), Some(choices.replace("[5, 6,2]", "[5, 6]")));
        for same in [
            r#"[{"finish_reason":"length","token_ids":[7,2]}]"#,
            r#"[{"finish_reason":null,"token_ids":[7,2]}]"#,
            // A renderer wants at least one.
            r#"[{"finish_reason":"stop","token_ids":[2]}]"#,
            r#"[{"finish_reason":"stop","token_ids":[]}]"#,
            "[]",
            "null",
        ] {
            assert_eq!(cut(same), None, "{same}");
        }
        let last = r#"[{"finish_reason":"stop","token_ids":[2]}]"#;
        assert_eq!(without_last_words(last, false), Some(last.replace("[2]", "[]")));
    }

    #[test]
    fn an_answer_that_is_nothing_but_its_end_says_nothing() {
        let generated =
            r#"[{"finish_reason":"stop","token_ids":[2]},{"finish_reason":"stop","token_ids":[5,2]}]"#;
        let texts = r#"[{"index":0,"text":"x"},{"index":1,"text":"y"}]"#;
        assert_eq!(silenced(texts, generated), Some(texts.replace(r#""x""#, r#""""#)));
        let chats = r#"[{"message":{"role":"assistant","content":"x"}},{"message":{"content":"y"}}]"#;
        assert_eq!(silenced(chats, generated), Some(chats.replace(r#""x""#, r#""""#)));
        assert_eq!(silenced(texts, &generated.replace("stop", "length")), None);
        assert_eq!(silenced(texts, &generated.replace("[2]", "[3,2]")), None);
    }

    #[test]
    fn a_chat_names_its_speaker_first() {
        let choices = r#"[{"index":0,"delta":{"role":"assistant","content":"hi","reasoning":null,"tool_calls":[]},"finish_reason":null}]"#;
        let role =
            r#"[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#;
        let said = r#"[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]"#;
        assert_eq!(chat(choices, true), Some((Some(role.into()), Some(said.into()))));
    }

    #[test]
    fn a_delta_that_adds_nothing_is_an_empty_text_unless_a_parser_waits() {
        let choices = r#"[{"index":1,"delta":{"role":null,"content":null},"finish_reason":null}]"#;
        let said = r#"[{"index":1,"delta":{"content":""},"finish_reason":null}]"#;
        assert_eq!(chat(choices, true), Some((None, Some(said.into()))));
        assert_eq!(chat(choices, false), Some((None, None)));
        let last = choices.replace(r#""finish_reason":null"#, r#""finish_reason":"stop""#);
        let said = said.replace(r#""finish_reason":null"#, r#""finish_reason":"stop""#);
        assert_eq!(chat(&last, false), Some((None, Some(said))));
    }

    #[test]
    fn what_are_no_choices_is_nothing() {
        for wrong in ["null", "{}", "[1]", r#"[{"index":0}]"#, r#"[{"delta":null}]"#] {
            assert_eq!(chat(wrong, true), None, "{wrong}");
        }
    }
}
