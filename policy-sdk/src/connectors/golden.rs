//! Bodies that tests compare legs with: the client's, and what of it each
//! engine must see. They are written down from the engines' sources, one file
//! per connector and phase.

use serde_json::Value;

use crate::{Edit, Leg};

/// A file below `golden/`.
macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/connectors/golden/", $name, ".json"))
    };
}
pub(crate) use golden;

/// The body after the edits, as the router would splice it. The client's own
/// KV transfer params are taken out by the router before.
pub(crate) fn edited(body: &str, leg: &Leg) -> Value {
    let mut body: Value = serde_json::from_str(body).unwrap();
    let fields = body.as_object_mut().unwrap();
    fields.remove("kv_transfer_params");
    for edit in &leg.edits {
        match edit {
            Edit::Set { name, value } => {
                fields.insert(name.to_string(), serde_json::from_str(value).unwrap());
            }
            Edit::Remove(name) => {
                fields.remove(name.as_ref());
            }
        }
    }
    body
}

/// The leg must turn the client's body into the expected one.
#[track_caller]
pub(crate) fn assert_leg(client: &str, leg: &Leg, expected: &str) {
    let expected: Value = serde_json::from_str(expected).unwrap();
    assert_eq!(edited(client, leg), expected);
}

/// The JSON text that the leg sets a field to.
pub(crate) fn set_value<'a>(leg: &'a Leg, field: &str) -> Option<&'a str> {
    leg.edits.iter().rev().find_map(|edit| match edit {
        Edit::Set { name, value } if name == field => Some(value.as_ref()),
        _ => None,
    })
}
