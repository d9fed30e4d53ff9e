//! `/sim/*`: looking into a simulated engine, and breaking it, from outside the process.

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::body::SimBody;
use super::encoder::{PUSH, TAKE};
use super::fault::Fault;
use super::journal::Request;
use super::rejection::json_response;
use super::route::Service;

/// Answers `GET /sim/requests`, `GET /sim/state`, `POST /sim/fault`, `POST /sim/reset`, and engines that exchange
/// encodings.
pub(crate) fn answer(service: &Service, method: &Method, path: &str, body: &Bytes) -> Response<SimBody> {
    match (method.as_str(), path) {
        ("GET", "/sim/requests") => {
            let requests: Vec<Value> = service.journal.requests().iter().map(Request::to_json).collect();
            json_response(StatusCode::OK, &requests)
        }
        ("GET", "/sim/state") => json_response(StatusCode::OK, &state(service)),
        ("POST", "/sim/fault") => fault(service, body),
        ("POST", "/sim/reset") => {
            service.faults.clear();
            service.journal.clear();
            service.violations.clear();
            json_response(StatusCode::OK, &json!({}))
        }
        ("POST", TAKE) => take(service, body),
        ("POST", PUSH) => {
            let body: Value = serde_json::from_slice(body).unwrap_or_default();
            let text = |name: &str| body[name].as_str().unwrap_or_default();
            let rank = body["rank"].as_u64().unwrap_or_default();
            service.encodings.push(rank, text("transfer_id"), text("mm_hash"));
            json_response(StatusCode::OK, &json!({}))
        }
        _ => json_response(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" })),
    }
}

fn state(service: &Service) -> Value {
    let rank_state = |rank: &std::sync::Arc<super::rank::Rank>| {
        let core = rank.core();
        json!({
            "engine_id": rank.place.engine_id, "side_port": rank.place.side_port, "running": core.running,
            "waiting": core.waiting(), "pinned": core.leases.len(), "free_blocks": core.pool.free_count(),
            "leaked_blocks": core.leaked.len(), "hanging": core.hanging, "counters": core.counters,
        })
    };
    json!({
        "role": service.config.role, "model": service.config.model, "blocks": service.config.blocks,
        "dead": *service.dead.borrow(), "violations": service.violations.all(),
        "ranks": service.ranks.iter().map(rank_state).collect::<Vec<_>>(),
    })
}

/// Gives an encoding away, to the consumer that has come for it.
fn take(service: &Service, body: &Bytes) -> Response<SimBody> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    match body["mm_hash"].as_str().and_then(|hash| service.encodings.take(hash)) {
        Some(content) => json_response(StatusCode::OK, &json!({ "content": content })),
        None => json_response(StatusCode::NOT_FOUND, &json!({ "detail": "no such encoding" })),
    }
}

fn fault(service: &Service, body: &Bytes) -> Response<SimBody> {
    let fault = serde_json::from_slice(body).and_then(|json: Value| Fault::from_json(&json));
    match fault {
        Ok(fault) => {
            service.faults.add(fault);
            json_response(StatusCode::OK, &json!({}))
        }
        Err(error) => json_response(StatusCode::BAD_REQUEST, &json!({ "detail": error.to_string() })),
    }
}
