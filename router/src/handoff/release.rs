//! Gives KV caches back that no decode instance will fetch.
//!
//! A prefill engine has no call for that; it waits for its lease to end, and meanwhile has less room
//! for prompts. But a decode engine that refuses a request which names a KV cache tells prefill to let
//! go of it (engine contract §0.7; seen with vLLM 0.32: the blocks are free within half a second). So
//! it is sent a request that it can only refuse: for a model that nobody serves.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edge_router_policy::Phase;
use edge_router_policy::connectors::nixl;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;

use crate::fleet::Fleet;
use crate::metrics::Metrics;

/// A model that nobody serves.
const NO_MODEL: &str = "edge-router-releases-kv";
/// For one decode instance to refuse.
const LIMIT: Duration = Duration::from_secs(2);

/// What is needed to give a KV cache back.
#[derive(Debug)]
pub struct Releaser {
    fleet: Arc<Fleet>,
    metrics: Arc<Metrics>,
    engine_auth: Option<HeaderValue>,
    /// Whether to try at all.
    enabled: bool,
}

impl Releaser {
    /// One that asks the decode instances of `fleet`.
    pub fn new(
        fleet: Arc<Fleet>,
        metrics: Arc<Metrics>,
        engine_auth: Option<HeaderValue>,
        enabled: bool,
    ) -> Self {
        Self { fleet, metrics, engine_auth, enabled }
    }

    /// Nobody will fetch what `params` name. Gives it back in the background, or counts an orphan where
    /// that can't be done: without whole coordinates no engine can be told anything.
    pub(super) fn release(self: &Arc<Self>, params: Option<&Bytes>) {
        let text = params.and_then(|params| std::str::from_utf8(params).ok());
        let releasable = text.filter(|params| self.enabled && is_releasable(params));
        match (releasable, tokio::runtime::Handle::try_current()) {
            (Some(params), Ok(runtime)) => {
                let body = refusable(params);
                let this = Arc::clone(self);
                runtime.spawn(async move { this.ask_around(body).await });
            }
            _ => self.orphaned(),
        }
    }

    /// Counts a KV cache that stays where it is until its lease ends.
    pub(super) fn orphaned(&self) {
        self.metrics.request.orphaned();
    }

    /// The instance that could not be reached a moment ago may still count as healthy: so one after the
    /// other is asked, until one has refused as it should.
    async fn ask_around(&self, body: Bytes) {
        let json = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let auth = self.engine_auth.clone().map(|auth| (AUTHORIZATION, auth));
        let headers = HeaderMap::from_iter(std::iter::once(json).chain(auth));
        let snapshot = self.fleet.snapshot();
        for instance in snapshot.serving(Phase::Decode).filter(|i| i.is_in_service()) {
            let asked =
                instance.ask(Method::POST, "/v1/completions", headers.clone(), body.clone(), LIMIT).await;
            if matches!(asked, Ok((StatusCode::NOT_FOUND, _))) {
                return self.metrics.request.released();
            }
        }
        self.orphaned();
    }
}

/// Whether an engine that is given `params` in a request that it refuses tells prefill to let go. With push
/// it tells nobody (seen with vLLM 0.32: the blocks stay until the lease ends).
fn is_releasable(params: &str) -> bool {
    #[derive(Deserialize)]
    struct Mode {
        transfer_mode: Option<String>,
    }
    let mode = serde_json::from_str(params).ok().and_then(|mode: Mode| mode.transfer_mode);
    nixl::usable(params).is_ok() && mode.as_deref() != Some("push")
}

fn refusable(params: &str) -> Bytes {
    format!(r#"{{"model":"{NO_MODEL}","prompt":"x","max_tokens":1,"kv_transfer_params":{params}}}"#).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_decode_pulls_can_be_given_back() {
        let pull = r#"{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1,"transfer_mode":"pull"}"#;
        assert!(is_releasable(pull) && is_releasable(&pull.replace(r#","transfer_mode":"pull""#, "")));
        assert!(!is_releasable(&pull.replace(r#""pull""#, r#""push""#)));
        assert!(!is_releasable("{}"));
    }

    #[test]
    fn the_request_carries_the_params_byte_for_byte() {
        let params = r#"{"do_remote_prefill": true, "x": 1.0}"#;
        let body = refusable(params);
        let object = crate::body::scan::Object::scan(body).unwrap();
        assert_eq!(object.get("kv_transfer_params"), Some(params));
        assert_eq!(object.get_str("model").as_deref(), Some(NO_MODEL));
    }
}
