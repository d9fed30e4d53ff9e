//! Everything that a policy of edge-router is written with.
//!
//! A policy decides for each request which prefill and which decode instance
//! serve it, and how the two legs differ from what the client sent. It is a
//! plain struct that implements [`Policy`]; every hook but two has a default
//! that abstains, so the next policy in the router's chain decides. A whole
//! policy:
//!
//! ```
//! use edge_router_policy::{Candidates, Manifest, Phase, Policy, PolicyError, Request, Target};
//!
//! struct Shortest;
//!
//! impl Policy for Shortest {
//!     fn configure(_config: &str) -> Result<Self, PolicyError> { Ok(Self) }
//!     fn manifest(&self) -> Manifest { edge_router_policy::manifest!() }
//!     fn schedule(&mut self, _: Phase, _: &Request<'_>, candidates: &Candidates) -> Result<Option<Target>, PolicyError> {
//!         Ok(candidates.min_by_key(|c| c.in_flight).map(|c| Target::new(c.id, "shortest queue")))
//!     }
//! }
//!
//! edge_router_policy::export!(Shortest);
//! ```
//!
//! Its crate has `crate-type = ["cdylib", "rlib"]` and is built for
//! `wasm32-wasip2`; the resulting component goes into the router's `policies/`
//! folder. `cargo test` runs the same code natively, where [`export!`] exports
//! nothing and [`testing`] stands in for the router.
//!
//! The router serialises all calls into a policy, so `&mut self` and std
//! collections are all the concurrency a policy needs. A call is interrupted
//! after some milliseconds; a panic costs the policy its memory, and the
//! request only this one decision.

mod candidates;
mod edits;
mod error;
mod export;
mod fleet;
mod manifest;
mod outcome;
mod random;
mod request;

pub mod connectors;
pub mod log;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;

pub use candidates::{Candidate, Candidates};
pub use edits::{Edit, Leg};
pub use error::{PolicyError, parse_config};
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub use export::guest as __guest;
pub use fleet::{Instance, InstanceId, Pair, Phase, Placement, Role, Target};
pub use manifest::{Facts, Handoff, Manifest};
pub use outcome::{Outcome, ResultClass};
pub use random::Random;
pub use request::{Request, RequestSource};

/// The decisions of a policy.
///
/// `Ok(None)` abstains: the next policy in the chain is asked. An error does
/// so too, and is counted and logged with its text.
pub trait Policy {
    /// Makes the policy from the operator's configuration, the text of a JSON
    /// object (`{}` if there is none); [`parse_config`] reads it.
    ///
    /// # Errors
    ///
    /// An error refuses the load of this version with its text: name the key
    /// and what it may be.
    fn configure(config: &str) -> Result<Self, PolicyError>
    where
        Self: Sized;

    /// What the policy is called and which facts it wants. Asked once, right
    /// after [`configure`](Self::configure).
    fn manifest(&self) -> Manifest;

    /// The whole fleet, before the first decision and after every change. It
    /// includes instances that can't be chosen at the moment.
    fn instances_changed(&mut self, instances: &[Instance]) {
        let _ = instances;
    }

    /// Chooses one of `candidates` for this phase of the request.
    ///
    /// # Errors
    ///
    /// Counted and logged; the next policy in the chain decides.
    fn schedule(
        &mut self,
        phase: Phase,
        request: &Request<'_>,
        candidates: &Candidates,
    ) -> Result<Option<Target>, PolicyError> {
        let _ = (phase, request, candidates);
        Ok(None)
    }

    /// The edits that turn the client's body into the prefill leg's.
    ///
    /// # Errors
    ///
    /// Counted and logged; the next policy in the chain decides.
    fn rewrite_prefill(&mut self, request: &Request<'_>, pair: Pair) -> Result<Option<Leg>, PolicyError> {
        let _ = (request, pair);
        Ok(None)
    }

    /// The edits that turn the client's body into the decode leg's.
    ///
    /// `kv_params` is the JSON text of the `kv_transfer_params` that prefill
    /// returned; `None` when it returned nothing usable or has not run yet. A
    /// leg without edits lets decode compute the prompt itself.
    ///
    /// # Errors
    ///
    /// Counted and logged; the next policy in the chain decides.
    fn merge_kv_params(
        &mut self,
        request: &Request<'_>,
        pair: Pair,
        kv_params: Option<&str>,
    ) -> Result<Option<Leg>, PolicyError> {
        let _ = (request, pair, kv_params);
        Ok(None)
    }

    /// What became of requests, in batches and off the request path. Called
    /// only if the manifest asks for [`Facts::outcomes`].
    fn observe(&mut self, outcomes: &[Outcome]) {
        let _ = outcomes;
    }

    /// What the next version of this policy may want to remember, at most
    /// 1 MiB. Called before a hot reload.
    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes over the snapshot of the version that this one replaces. Called
    /// after [`configure`](Self::configure).
    ///
    /// # Errors
    ///
    /// The policy starts without it.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), PolicyError> {
        let _ = snapshot;
        Ok(())
    }
}
