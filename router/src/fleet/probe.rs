//! Asks an instance how it is, from the moment it joins until it leaves.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use tokio::time::{MissedTickBehavior, interval};

use super::instance::Instance;
use super::{Fleet, role_name, scrape};
use crate::body::read::read_capped;
use crate::upstream::LegRequest;

/// Metrics of an engine with many LoRA adapters run to some hundred kilobytes.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// Until the first probe has succeeded an instance is asked this often: a router and its engines are
/// often started together, and nobody should wait a whole interval for the last one.
const EAGER: Duration = Duration::from_millis(250);

/// Probes `instance` until it is retired or the fleet is gone.
pub(super) fn start(fleet: &Arc<Fleet>, instance: &Arc<Instance>) {
    let (fleet, instance) = (Arc::downgrade(fleet), Arc::clone(instance));
    let retired = instance.retired.clone();
    tokio::spawn(retired.run_until_cancelled_owned(async move {
        let Some(settings) = fleet.upgrade().map(|f| f.settings.health) else { return };
        let mut regular = interval(settings.interval);
        regular.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut eager = interval(EAGER.min(settings.interval));
        eager.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if instance.health.is_healthy() {
                regular.tick().await;
            } else {
                eager.tick().await;
            }
            let Some(fleet) = fleet.upgrade() else { return };
            probe(&fleet, &instance).await;
        }
    }));
}

async fn probe(fleet: &Fleet, instance: &Arc<Instance>) {
    instance.pool().sweep();
    let limit = fleet.settings.health.timeout;
    let api_key = fleet.settings.api_key.as_deref();
    let healthy = matches!(get(instance, "/health", limit, None).await, Some((StatusCode::OK, _)));
    let news = if !healthy {
        instance.health.probe_failed()
    } else if let Some(served) = other_models(fleet, instance, limit, api_key).await {
        instance.health.wrong_model(served)
    } else {
        instance.health.probe_succeeded()
    };
    if news {
        announce(fleet, instance);
    }
    if healthy && let Some((StatusCode::OK, text)) = get(instance, "/metrics", limit, None).await {
        let report = std::str::from_utf8(&text).ok().and_then(scrape::parse).unwrap_or_default();
        instance.load.report(report.running, report.waiting, report.kv_usage);
    }
}

fn announce(fleet: &Fleet, instance: &Instance) {
    let (state, address) = (instance.health.state(), instance.address());
    let role = role_name(instance.spec().role);
    match &state {
        super::HealthState::WrongModel(served) => tracing::warn!(
            instance = address,
            role,
            wanted = fleet.settings.model,
            ?served,
            "instance does not serve the model given by --model; nothing is sent to it"
        ),
        super::HealthState::Healthy => tracing::info!(instance = address, role, "instance is healthy"),
        _ => tracing::warn!(instance = address, role, state = state.name(), "instance can't be used"),
    }
    fleet.availability_changed();
}

/// The models that the instance serves, if the wanted one is not among them. Asked only while the
/// instance is out of use: engines don't change their model while they run.
async fn other_models(
    fleet: &Fleet,
    instance: &Instance,
    limit: Duration,
    api_key: Option<&str>,
) -> Option<Vec<String>> {
    let wanted = fleet.settings.model.as_deref()?;
    if instance.health.is_healthy() {
        return None;
    }
    let (status, body) = get(instance, "/v1/models", limit, api_key).await?;
    if status != StatusCode::OK {
        return Some(vec![format!("(GET /v1/models answers {status})")]);
    }
    let served = model_ids(&body);
    // The demo proxy compares the last path segment, so that a local path matches a hub name.
    let base = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    let same = served.iter().any(|s| s == wanted || base(s) == base(wanted));
    (!same).then_some(served)
}

fn model_ids(body: &[u8]) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct List {
        data: Vec<Card>,
    }
    #[derive(serde::Deserialize)]
    struct Card {
        id: String,
    }
    serde_json::from_slice::<List>(body)
        .map(|l| l.data.into_iter().map(|c| c.id).collect())
        .unwrap_or_default()
}

async fn get(
    instance: &Instance,
    path: &'static str,
    limit: Duration,
    api_key: Option<&str>,
) -> Option<(StatusCode, bytes::Bytes)> {
    let mut headers = HeaderMap::new();
    if let Some(key) = api_key.and_then(|k| HeaderValue::from_str(&format!("Bearer {k}")).ok()) {
        headers.insert(http::header::AUTHORIZATION, key);
    }
    let request = LegRequest {
        method: Method::GET,
        uri: Uri::from_static(path),
        headers,
        body: bytes::Bytes::new().into(),
    };
    let answer = async {
        let response = instance.pool().send(&request, limit).await.ok()?;
        let status = response.status();
        Some((status, read_capped(response.into_body(), MAX_ANSWER).await.ok()?))
    };
    tokio::time::timeout(limit, answer).await.ok().flatten()
}
