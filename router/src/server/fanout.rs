//! Administrative calls that go to every engine: profiling, LoRA adapters, caches.
//!
//! Engines serve most of them without any credentials, so they are reachable here only with the admin
//! key, and only those that leave an engine serving (engine contract §11.2).

use std::sync::Arc;

use bytes::Bytes;
use edge_router_policy::Role;
use futures_util::future::join_all;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};

use crate::app::App;
use crate::fleet::{Instance, role_name};

/// What an engine says may be this long to be repeated.
const MAX_SHOWN: usize = 64 * 1024;

/// Paths that are fanned out, all POST.
pub(super) const PATHS: [&str; 7] = [
    "/start_profile",
    "/stop_profile",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
];

/// Sends `body` to every instance that runs a model, and tells what each answered. 200 if all agreed,
/// else 502: some may have done it.
pub(super) async fn fan_out(app: &App, path: &'static str, body: Bytes) -> (StatusCode, Value) {
    let snapshot = app.fleet.snapshot();
    let with_model = snapshot.instances.iter().filter(|i| i.spec().role != Role::Render);
    let answers = join_all(with_model.map(|instance| send(app, instance, path, body.clone()))).await;
    if path == "/reset_prefix_cache" {
        app.fleet.prefixes().clear();
    }
    let all = answers.iter().all(|(done, _)| *done);
    let results: Vec<Value> = answers.into_iter().map(|(_, answer)| answer).collect();
    (if all { StatusCode::OK } else { StatusCode::BAD_GATEWAY }, json!({ "results": results }))
}

async fn send(app: &App, instance: &Arc<Instance>, path: &'static str, body: Bytes) -> (bool, Value) {
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    headers.extend(app.config.engine_auth.clone().map(|auth| (AUTHORIZATION, auth)));
    let asked = instance.ask(Method::POST, path, headers, body, app.config.timeouts.prefill).await;
    let (done, said) = match asked {
        Err(error) => (false, json!({ "error": error })),
        Ok((status, body)) => {
            let body = String::from_utf8_lossy(&body[..body.len().min(MAX_SHOWN)]);
            (status.is_success(), json!({ "status": status.as_u16(), "body": body }))
        }
    };
    let who =
        json!({ "instance": instance.address(), "role": role_name(instance.spec().role), "answer": said });
    (done, who)
}
