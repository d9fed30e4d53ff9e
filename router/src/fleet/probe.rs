//! Asks an instance how it is, from the moment it joins until it leaves.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::time::{MissedTickBehavior, interval};

use super::instance::Instance;
use super::{Fleet, HealthState, role_name, scrape};

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
        let mut announced = instance.health.state();
        let mut awaited = false;
        loop {
            if instance.health.is_healthy() {
                regular.tick().await;
            } else {
                eager.tick().await;
            }
            let Some(fleet) = fleet.upgrade() else { return };
            probe(&fleet, &instance).await;
            // Requests may have changed it as well.
            let state = instance.health.state();
            if let Some(why) = instance.health.last_probe_error()
                && state == HealthState::Starting
                && !std::mem::replace(&mut awaited, true)
            {
                let (address, role) = (instance.address(), role_name(instance.spec().role));
                tracing::info!(instance = address, role, why, "waiting for instance");
            }
            if state != announced {
                if announced == HealthState::Healthy && instance.health.last_probe_error().is_some() {
                    // It was away, and most likely has been restarted: its cache is empty.
                    fleet.prefixes.forget(instance.id());
                }
                announce(&fleet, &instance, &state);
                announced = state;
            }
        }
    }));
}

async fn probe(fleet: &Fleet, instance: &Arc<Instance>) {
    instance.pool().sweep();
    let limit = fleet.settings.health.timeout;
    let auth = fleet.settings.engine_auth.as_ref();
    let health = &instance.health;
    match get(instance, "/health", limit, None).await {
        Ok((StatusCode::OK, _)) => {}
        Ok((status, _)) => return health.probe_failed(format!("GET /health answers {status}")),
        Err(why) => return health.probe_failed(why),
    }
    match models(fleet, instance, limit, auth).await {
        Models::Right => health.probe_succeeded(),
        Models::Wrong(served) => health.wrong_model(served),
        Models::Unknown(why) => health.probe_failed(why),
    }
    if let Ok((StatusCode::OK, text)) = get(instance, "/metrics", limit, None).await {
        let report = std::str::from_utf8(&text).ok().and_then(scrape::parse).unwrap_or_default();
        instance.load.report(report.running, report.waiting, report.kv_usage);
    }
}

fn announce(fleet: &Fleet, instance: &Instance, state: &HealthState) {
    let (address, role) = (instance.address(), role_name(instance.spec().role));
    match state {
        HealthState::WrongModel(served) => tracing::warn!(
            instance = address,
            role,
            wanted = fleet.settings.model,
            ?served,
            "instance does not serve the model given by --model; nothing is sent to it"
        ),
        HealthState::Healthy => tracing::info!(instance = address, role, "instance is healthy"),
        _ => {
            // None if its requests failed while its probes did not.
            let why = instance.health.last_probe_error();
            tracing::warn!(instance = address, role, state = state.name(), why, "instance can't be used");
        }
    }
    fleet.availability_changed();
}

/// What an instance serves, as far as it matters.
enum Models {
    /// The wanted model, or none is wanted.
    Right,
    /// These, and the wanted one is not among them.
    Wrong(Vec<String>),
    /// It did not say, for this reason.
    Unknown(String),
}

/// Asks for the models only while the instance is out of use: engines don't change theirs while they run.
async fn models(fleet: &Fleet, instance: &Instance, limit: Duration, auth: Option<&HeaderValue>) -> Models {
    let Some(wanted) = fleet.settings.model.as_deref() else { return Models::Right };
    if instance.health.is_healthy() {
        return Models::Right;
    }
    let (status, body) = match get(instance, "/v1/models", limit, auth).await {
        Ok(answer) => answer,
        Err(why) => return Models::Unknown(why),
    };
    if status.is_server_error() {
        return Models::Unknown(format!("GET /v1/models answers {status}"));
    }
    if status != StatusCode::OK {
        return Models::Wrong(vec![format!("(GET /v1/models answers {status})")]);
    }
    let served = model_ids(&body);
    // The demo proxy compares the last path segment, so that a local path matches a hub name.
    let base = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    let same = served.iter().any(|s| s == wanted || base(s) == base(wanted));
    if same { Models::Right } else { Models::Wrong(served) }
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
    auth: Option<&HeaderValue>,
) -> Result<(StatusCode, Bytes), String> {
    let headers = HeaderMap::from_iter(auth.map(|auth| (AUTHORIZATION, auth.clone())));
    instance.ask(Method::GET, path, headers, Bytes::new(), limit).await
}
