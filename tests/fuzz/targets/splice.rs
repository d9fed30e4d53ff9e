//! Scanning and splicing against the model of a parsed tree.
#![no_main]

use bytes::Bytes;
use edge_router_fuzz::body::prompt;
use edge_router_fuzz::body::scan::Object;
use edge_router_fuzz::body::splice::{check, splice};
use edge_router_policy::Edit;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

/// The input is a body, and behind a zero byte, one line each, edits: `name=json` or `name`.
fuzz_target!(|data: &[u8]| {
    let (text, edits) = data.split_at(data.iter().position(|b| *b == 0).unwrap_or(data.len()));
    let Ok(object) = Object::scan(Bytes::copy_from_slice(text)) else { return };
    assert_eq!(splice(&object, &[]).to_bytes(), text);
    let _ = prompt::tokens(&object);
    let _ = prompt::blocks(&object, 4);

    let edits: Vec<Edit> = String::from_utf8_lossy(edits)
        .trim_start_matches('\0')
        .lines()
        .map(|line| match line.split_once('=') {
            Some((name, value)) => Edit::Set { name: name.to_owned().into(), value: value.to_owned().into() },
            None => Edit::Remove(line.to_owned().into()),
        })
        .collect();
    if check(&edits).is_err() {
        return;
    }
    let spliced = splice(&object, &edits).to_bytes();
    assert!(Object::scan(spliced.clone()).is_ok(), "{spliced:?}");
    // The model gives up on depth and on numbers out of range; the scanner does not.
    let Ok(mut model) = serde_json::from_slice::<Map<String, Value>>(text) else { return };
    for edit in &edits {
        match edit {
            Edit::Set { name, value } => {
                let Ok(value) = serde_json::from_str(value) else { return };
                model.insert(name.to_string(), value);
            }
            Edit::Remove(name) => {
                model.remove(&**name);
            }
        }
    }
    assert_eq!(serde_json::from_slice::<Map<String, Value>>(&spliced).ok(), Some(model), "{spliced:?}");
});
