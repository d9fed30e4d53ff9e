//! The shape of a JSON value: its keys, and the types under them.

use std::collections::BTreeMap;

use edge_router_tests::sse::Event;
use serde_json::{Map, Value};

/// The value with everything replaced by the name of its type, except keys. Lists are what their elements are.
pub(super) fn shape(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => "bool".into(),
        Value::Number(number) if number.is_f64() => "float".into(),
        Value::Number(_) => "integer".into(),
        Value::String(_) => "text".into(),
        Value::Array(items) => {
            let mut shapes: Vec<Value> = items.iter().map(shape).collect();
            shapes.dedup();
            shapes.into()
        }
        Value::Object(fields) => object(fields),
    }
}

fn object(fields: &Map<String, Value>) -> Value {
    let shapes = fields.iter().map(|(key, value)| match (key.as_str(), value) {
        // The keys are tokens, and their number is by chance the same for two of them.
        ("top_logprobs", Value::Array(items)) if items.iter().all(is_token_map) => {
            (key.clone(), "token maps".into())
        }
        ("bytes", Value::Array(_)) => (key.clone(), "bytes".into()),
        _ => (key.clone(), shape(value)),
    });
    shapes.collect::<Map<_, _>>().into()
}

fn is_token_map(value: &Value) -> bool {
    value.as_object().is_some_and(|tokens| tokens.values().all(Value::is_f64))
}

/// The shapes of a stream's events, in order, by choice; events of no choice are under `None`.
pub(super) fn streams(events: &[Event]) -> BTreeMap<Option<u64>, Vec<String>> {
    let mut streams: BTreeMap<Option<u64>, Vec<String>> = BTreeMap::new();
    for event in events {
        let json = event.json();
        let choice = json.pointer("/choices/0/index").and_then(Value::as_u64);
        let shown = if event.is_done() { event.data.clone() } else { shape(&json).to_string() };
        let shown = event.name.clone().unwrap_or_default() + &shown;
        let stream = streams.entry(choice).or_default();
        // Named events leave out tokens without text, so that their number is by chance.
        if event.name.is_none() || stream.last() != Some(&shown) {
            stream.push(shown);
        }
    }
    streams
}
