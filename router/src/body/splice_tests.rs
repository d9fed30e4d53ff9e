//! Examples and properties of splicing, against the model of a parsed tree.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;

fn object(text: &str) -> Object {
    Object::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn set(name: &str, value: &str) -> Edit {
    Edit::Set { name: name.to_owned().into(), value: value.to_owned().into() }
}

fn remove(name: &str) -> Edit {
    Edit::Remove(name.to_owned().into())
}

fn spliced(text: &str, edits: &[Edit]) -> String {
    String::from_utf8(splice(&object(text), edits).to_bytes().to_vec()).unwrap()
}

#[test]
fn untouched_bytes_stay() {
    let text = " { \"a\" : 1.0,\n\"b\":\"\\ud83d\\u0000\" , \"a\":2e-7 }\n";
    assert_eq!(spliced(text, &[]), text);
}

#[test]
fn fields_are_replaced_removed_and_appended() {
    let text = r#"{"max_tokens": 300, "stream":true,"stream_options":{"include_usage":true}, "x":1}"#;
    let edits =
        [set("stream", "false"), remove("stream_options"), set("max_tokens", "1"), set("new", "[1, 2]")];
    assert_eq!(spliced(text, &edits), r#"{"max_tokens": 1, "stream":false, "x":1,"new":[1, 2]}"#);
}

#[test]
fn the_first_field_takes_its_comma_along() {
    assert_eq!(spliced(r#"{"a":1 , "b":2}"#, &[remove("a")]), r#"{ "b":2}"#);
    assert_eq!(spliced(r#"{"a":1}"#, &[remove("a")]), "{}");
    assert_eq!(spliced(r#"{"a":1}"#, &[remove("a"), set("b", "2")]), r#"{"b":2}"#);
    assert_eq!(spliced("{ }", &[set("b", "2")]), r#"{"b":2 }"#);
}

#[test]
fn a_repeated_field_can_not_survive_its_edit() {
    let text = r#"{"kv":1,"a":0,"k\u0076":2}"#;
    assert_eq!(spliced(text, &[remove("kv")]), r#"{"a":0}"#);
    assert_eq!(spliced(text, &[set("kv", "3")]), r#"{"a":0,"k\u0076":3}"#);
}

#[test]
fn the_last_edit_of_a_field_counts() {
    assert_eq!(spliced(r#"{"a":1}"#, &[set("a", "2"), remove("a")]), "{}");
    assert_eq!(spliced("{}", &[set("a", "2"), set("a", "3")]), r#"{"a":3}"#);
}

#[test]
fn a_large_body_is_shared() {
    let text = format!(r#"{{"prompt":"{}","max_tokens":5}}"#, "x".repeat(100_000));
    let object = object(&text);
    let pieces = splice(&object, &[set("max_tokens", "1")]).into_inner();
    assert_eq!(pieces[0].as_ptr(), object.bytes().as_ptr());
    assert_eq!(pieces.len(), 3);
}

#[test]
fn bad_edits_are_refused() {
    assert!(matches!(check(&[set("a", "1 2")]), Err(EditError::NotJson { .. })));
    assert!(matches!(check(&[set("a", "1},{")]), Err(EditError::NotJson { .. })));
    assert!(matches!(check(&[set("a", "")]), Err(EditError::NotJson { .. })));
    assert!(matches!(check(&vec![remove("a"); MAX_EDITS + 1]), Err(EditError::TooMany(_))));
    let big = format!("\"{}\"", "x".repeat(MAX_EDIT_BYTES));
    assert!(matches!(check(&[set("a", &big)]), Err(EditError::TooLarge(_))));
    assert_eq!(check(&[set("a", r#"{"b":[1]}"#), remove("c")]), Ok(()));
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~\u{e9}\u{1f642}\"\\\\]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-e]", inner), 0..4)
                .prop_map(|m| Value::from(m.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// An object as text, with random white space and repeated names, which serde_json's tree takes the last of.
fn text() -> impl Strategy<Value = String> {
    let space = prop_oneof![Just(""), Just(" "), Just("\n\t")];
    prop::collection::vec(("[a-f]", json(), space), 0..8).prop_map(|members| {
        let members: Vec<String> =
            members.iter().map(|(k, v, s)| format!("{s}\"{k}\"{s}:{s}{v}{s}")).collect();
        format!(" {{{}}} ", members.join(","))
    })
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        ("[a-h]", json()).prop_map(|(k, v)| set(&k, &v.to_string())),
        "[a-h]".prop_map(|k| remove(&k))
    ]
}

proptest! {
    #[test]
    fn no_edits_change_nothing(text in text()) {
        prop_assert_eq!(spliced(&text, &[]), text);
    }

    #[test]
    fn edits_do_to_the_text_what_they_do_to_the_tree(text in text(), edits in prop::collection::vec(edit(), 0..6)) {
        let mut model: Map<String, Value> = serde_json::from_str(&text).unwrap();
        for edit in &edits {
            match edit {
                Edit::Set { name, value } => { model.insert(name.to_string(), serde_json::from_str(value).unwrap()); }
                Edit::Remove(name) => { model.remove(&**name); }
            }
        }
        let got: Map<String, Value> = serde_json::from_str(&spliced(&text, &edits)).unwrap();
        prop_assert_eq!(got, model);
    }

    #[test]
    fn scanning_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Object::scan(bytes.into());
    }
}
