//! `GET /status`: what there is and how it is. The first four keys are the demo proxy's.

use std::collections::BTreeMap;

use edge_router_policy::Phase;
use serde_json::{Value, json};

use crate::app::App;
use crate::fleet::{HealthState, Instance, role_name};

pub(super) fn status(app: &App) -> Value {
    let snapshot = app.fleet.snapshot();
    let nodes = |phase| -> Vec<&str> { snapshot.serving(phase).map(|i| i.address()).collect() };
    let (prefill, decode) = (nodes(Phase::Prefill), nodes(Phase::Decode));
    let ready = app.ready();
    json!({
        "prefill_node_count": prefill.len(),
        "decode_node_count": decode.len(),
        "prefill_nodes": prefill,
        "decode_nodes": decode,
        "encode_nodes": nodes(Phase::Encode),
        "ready": ready.is_ok(),
        "not_ready_because": ready.err(),
        "version": env!("CARGO_PKG_VERSION"),
        "instances": instances(app),
        "discovery": app.discovery.status(),
        "policies": app.chain.slots().iter().map(|slot| json!(slot.status())).collect::<Vec<_>>(),
        "prefix_index_blocks": app.fleet.prefixes().len(),
    })
}

/// All instances with their figures.
pub(super) fn instances(app: &App) -> Vec<Value> {
    let announcers = app.discovery.announcers();
    let sources = |i: &Instance| announcers.get(i.address()).map_or(&[][..], Vec::as_slice);
    app.fleet.snapshot().instances.iter().map(|i| instance(i, sources(i))).collect()
}

fn instance(instance: &Instance, sources: &[String]) -> Value {
    let load = instance.load();
    let kv_usage = load.kv_usage();
    let served = match instance.health().state() {
        HealthState::WrongModel(models) => Some(models),
        _ => None,
    };
    json!({
        "id": instance.id(),
        "address": instance.address(),
        "role": role_name(instance.spec().role),
        "sources": sources,
        "dp_size": instance.spec().dp_size,
        "tp_size": instance.spec().tp_size,
        "labels": instance.spec().labels.iter().cloned().collect::<BTreeMap<_, _>>(),
        "state": instance.health().state().name(),
        "serves_instead": served,
        "draining": instance.is_draining(),
        "in_flight": load.in_flight(),
        "queued_tokens": load.queued_tokens(),
        "running": load.running(),
        "waiting": load.waiting(),
        "kv_usage": (kv_usage >= 0.0).then_some(kv_usage),
        "failures": instance.health().failures(),
        "last_probe_error": instance.health().last_probe_error(),
    })
}
