//! Tries a policy on made-up data before it may decide for real requests.

use std::sync::Arc;

use bytes::Bytes;
use edge_router_policy::{Candidate, Candidates, Instance, Pair, Phase, Placement, Role};
use http::HeaderMap;

use super::Hook;
use super::component::LoadError;
use super::facts::{ClientRequest, RequestFacts};
use super::instance::{Fault, Running};
use crate::body::scan::Object;

const BODY: &[u8] =
    br#"{"model":"probe","messages":[{"role":"user","content":"is anybody there"}],"max_tokens":1}"#;
const KV_PARAMS: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"probe","remote_request_id":"probe","remote_host":"127.0.0.1","remote_port":1}"#;

/// Calls every hook once. A policy that answers with an error passes: it may have good reasons not to
/// like the made-up fleet. One that traps, loops or waits does not. `running` is spent afterwards.
pub(super) fn probe(running: Running) -> Result<(), LoadError> {
    // The first calls touch cold memory, perhaps on a machine that is busy with compiling; only a policy
    // that never comes to an end shall be refused for its time.
    let mut running = running.on_trial();
    let facts = facts();
    let instances = [instance(0, Role::Prefill), instance(1, Role::Decode)];
    let pair = Pair { prefill: Some(placement(0)), decode: Some(placement(1)) };
    survive(Hook::InstancesChanged, running.instances_changed(0, &instances))?;
    for (phase, id) in [(Phase::Prefill, 0), (Phase::Decode, 1)] {
        survive(Hook::Schedule, running.schedule(phase, &facts, &candidates(id)))?;
    }
    survive(Hook::RewritePrefill, running.rewrite_prefill(&facts, pair))?;
    survive(Hook::MergeKvParams, running.merge_kv_params(&facts, pair, Some(KV_PARAMS)))?;
    survive(Hook::Observe, running.observe(&[]))
}

fn survive<T>(hook: Hook, result: Result<T, Fault>) -> Result<(), LoadError> {
    match result {
        Err(fault) if fault.is_fatal() => Err(LoadError::Probe { hook: hook.name(), fault }),
        _ => Ok(()),
    }
}

fn facts() -> Arc<RequestFacts> {
    // The constant is an object; were it none, every policy would be tried on an empty one.
    let object = Object::scan(Bytes::from_static(BODY)).unwrap_or_else(|_| Object::empty());
    let client =
        ClientRequest::new("/v1/chat/completions".into(), HeaderMap::new(), object, 32, Arc::new([]));
    Arc::new(RequestFacts::new(Arc::new(client), "probe".into(), false))
}

fn instance(id: u32, role: Role) -> Instance {
    Instance {
        id,
        role,
        address: format!("127.0.0.1:{}", id + 1),
        dp_size: 1,
        tp_size: 1,
        labels: Vec::new(),
    }
}

fn placement(instance: u32) -> Placement {
    Placement { instance, dp_rank: None }
}

fn candidates(id: u32) -> Candidates {
    let mut candidates = Candidates::default();
    candidates.push(Candidate { id, ..Candidate::default() });
    candidates
}
