//! Encoders' answers, and what consumers are sent for them.

use serde_json::Value;

use super::*;
use crate::connectors::golden::golden;

fn one(params: &str, uuid: &str) -> Vec<Encoding> {
    encodings(params, &[uuid]).unwrap().remove(0)
}

fn hashes(params: &str, uuids: &[&str]) -> Result<Vec<Vec<String>>, EncodingError> {
    let of = |found: Vec<Encoding>| found.into_iter().map(|encoding| encoding.hash).collect();
    Ok(encodings(params, uuids)?.into_iter().map(of).collect())
}

#[test]
fn handles_go_on_as_they_were_written() {
    let found = encodings(golden!("ec/answer"), &["u0", "u1", "u2"]).unwrap();
    let params = transfer_params(found.iter().flatten()).unwrap();
    assert!(
        params.contains("18446744073709551616") && params.contains("0.50") && params.contains(r"t-\u00e9")
    );
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(json(&params), json(golden!("ec/params")));
    assert_eq!(transfer_params([]), None);
}

#[test]
fn what_is_pushed_is_found_by_its_id() {
    let mut found = one(r#"{"h":{},"i":{"transfer_id":"theirs"}}"#, "u");
    found.iter_mut().for_each(|encoding| encoding.pushed_as("ours"));
    let items = r#""ec_items":[{"mm_hash":"h","transfer_id":"ours"},{"mm_hash":"i","transfer_id":"theirs"}]"#;
    assert!(transfer_params(&found).unwrap().contains(items));
}

#[test]
fn metadata_stand_for_the_item() {
    let found = encodings(golden!("ec/answer"), &["u0", "u1", "u2"]).unwrap();
    let reference = |at: usize, uuid| reference(Modality::Image, &found[at], uuid).unwrap();
    assert_eq!(
        reference(0, "a\"b"),
        r#"{"type":"image_embeds","image_embeds":{"image_grid_thw":[1,2,3],"scale":[0.50,1e0,2],"n":7},"uuid":"a\"b"}"#
    );
    assert_eq!(
        reference(1, "u1"),
        r#"{"type":"image_embeds","image_embeds":{"image_grid_thw":[1,4,6]},"uuid":"u1"}"#
    );
    assert_eq!(reference(2, "x"), reference(0, "x"), "one image, twice");
}

#[test]
fn each_modality_has_its_own_part() {
    for (part_type, embeds) in [
        ("image_url", "image_embeds"),
        ("audio_url", "audio_embeds"),
        ("input_audio", "audio_embeds"),
        ("video_url", "video_embeds"),
    ] {
        let modality = Modality::of(part_type).unwrap();
        let part = reference(modality, &one(r#"{"h":{"metadata":{"n":[1]}}}"#, "u"), "u").unwrap();
        assert_eq!(part, format!(r#"{{"type":"{embeds}","{embeds}":{{"n":[1]}},"uuid":"u"}}"#));
    }
    assert_eq!(Modality::of("text"), None);
    assert_eq!(Modality::of("image_embeds"), None);
}

#[test]
fn an_item_whose_place_is_not_known_stays() {
    for metadata in ["null", "{}"] {
        let found = one(&format!(r#"{{"h":{{"metadata":{metadata},"peer_port":1}}}}"#), "u");
        assert_eq!(reference(Modality::Image, &found, "u"), None);
        assert!(transfer_params(&found).is_some(), "whoever knows the hash can fetch it");
    }
    assert_eq!(reference(Modality::Image, &one("{}", "u"), "u"), None);
    let features = one(r#"{"v":{"metadata":{"a":[1]},"item_indices":[0]},"s":{"item_indices":[0]}}"#, "u");
    assert_eq!((features.len(), reference(Modality::Video, &features, "u")), (2, None));
}

#[test]
fn an_encoding_is_found_by_index_then_by_name_and_is_that_of_the_only_item() {
    assert_eq!(hashes(r#"{"x":{}}"#, &["u"]).unwrap(), [["x"]]);
    assert_eq!(hashes(r#"{"x":{},"u":{}}"#, &["u"]).unwrap(), [["u"]]);
    assert_eq!(hashes(r#"{"b":{},"a":{}}"#, &["a", "b"]).unwrap(), [["a"], ["b"]]);
    assert_eq!(
        hashes(r#"{"b":{"item_indices":[0]},"c":{"item_indices":[1]}}"#, &["b", "b"]).unwrap(),
        [["b"], ["c"]]
    );
    assert_eq!(hashes("{}", &["a", "b"]).unwrap(), [[""; 0], [""; 0]]);
}

#[test]
fn what_can_not_be_matched_is_refused() {
    let two = |indices: &str| {
        let params = format!(r#"{{"a":{{"item_indices":[{indices}]}},"b":{{"item_indices":[1]}}}}"#);
        hashes(&params, &["u", "v"]).unwrap_err()
    };
    for index in ["2", "-1", "true", "\"0\"", "0.0", "1e0", "null"] {
        assert_eq!(two(index), EncodingError::Index(index.into()));
    }
    assert_eq!(two("0, 1"), EncodingError::Twice(1));
    assert_eq!(two("0, 0"), EncodingError::Twice(0));
    assert_eq!(two(""), EncodingError::Unmatched(0));
    assert_eq!(hashes(r#"{"x":{}}"#, &["a", "b"]), Err(EncodingError::Unmatched(0)));
    assert_eq!(
        hashes(r#"{"u":{"item_indices":[1]}}"#, &["u"]),
        Err(EncodingError::Index("1".into())),
        "of a single item too"
    );
    for shape in [
        "[]",
        "7",
        "{",
        r#"{"a":1}"#,
        r#"{"a":[]}"#,
        r#"{"a":{"metadata":3}}"#,
        r#"{"a":{"item_indices":1}}"#,
    ] {
        assert_eq!(hashes(shape, &["u"]), Err(EncodingError::Shape), "{shape}");
    }
}
