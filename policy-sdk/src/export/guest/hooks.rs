//! The exported interfaces, one implementation for all policies.

use super::bindings::edge_router::policy::request::Request as WitRequest;
use super::bindings::edge_router::policy::types as wit;
use super::bindings::exports::edge_router::policy as exports;
use super::{Component, with_policy};
use crate::{Policy, Request};

impl<C: Component> exports::lifecycle::Guest for C {
    fn configure(config: String) -> Result<wit::Manifest, String> {
        let policy = C::Policy::configure(&config).map_err(|error| error.to_string())?;
        let manifest = policy.manifest();
        C::slot().set(Some(policy));
        Ok(manifest.into())
    }

    fn instances_changed(instances: Vec<wit::Instance>) {
        let instances: Vec<_> = instances.into_iter().map(Into::into).collect();
        C::slot().with_borrow_mut(|policy| {
            if let Some(policy) = policy {
                policy.instances_changed(&instances);
            }
        });
    }
}

impl<C: Component> exports::scheduler::Guest for C {
    fn schedule(
        phase: wit::Phase,
        request: &WitRequest,
        candidates: wit::Candidates,
    ) -> Result<Option<wit::Target>, String> {
        let decide = |policy: &mut C::Policy| {
            policy.schedule(phase.into(), &Request::new(request), &candidates.into())
        };
        with_policy::<C, _>(decide).map(|target| target.map(Into::into))
    }
}

impl<C: Component> exports::prefill_rewriter::Guest for C {
    fn rewrite_prefill(request: &WitRequest, pair: wit::Pair) -> Result<Option<wit::Leg>, String> {
        let rewrite = |policy: &mut C::Policy| policy.rewrite_prefill(&Request::new(request), pair.into());
        with_policy::<C, _>(rewrite).map(|leg| leg.map(Into::into))
    }
}

impl<C: Component> exports::kv_merger::Guest for C {
    fn merge_kv_params(
        request: &WitRequest,
        pair: wit::Pair,
        kv_params: Option<String>,
    ) -> Result<Option<wit::Leg>, String> {
        let merge = |policy: &mut C::Policy| {
            policy.merge_kv_params(&Request::new(request), pair.into(), kv_params.as_deref())
        };
        with_policy::<C, _>(merge).map(|leg| leg.map(Into::into))
    }
}

impl<C: Component> exports::observer::Guest for C {
    fn observe(outcomes: Vec<wit::Outcome>) {
        let outcomes: Vec<_> = outcomes.into_iter().map(Into::into).collect();
        C::slot().with_borrow_mut(|policy| {
            if let Some(policy) = policy {
                policy.observe(&outcomes);
            }
        });
    }
}

impl<C: Component> exports::state::Guest for C {
    fn snapshot() -> Vec<u8> {
        C::slot().with_borrow(|policy| policy.as_ref().map(Policy::snapshot).unwrap_or_default())
    }

    fn restore(snapshot: Vec<u8>) -> Result<(), String> {
        with_policy::<C, _>(|policy| policy.restore(&snapshot))
    }
}
