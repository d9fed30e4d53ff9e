//! Runs a policy natively, on hand-made requests and fleets.
//!
//! ```
//! use edge_router_policy::{Phase, Policy, testing};
//! # use edge_router_policy::{Candidates, Manifest, PolicyError, Request, Target};
//! # struct Shortest;
//! # impl Policy for Shortest {
//! #     fn configure(_: &str) -> Result<Self, PolicyError> { Ok(Self) }
//! #     fn manifest(&self) -> Manifest { edge_router_policy::manifest!() }
//! #     fn schedule(&mut self, _: Phase, _: &Request<'_>, candidates: &Candidates) -> Result<Option<Target>, PolicyError> {
//! #         Ok(candidates.min_by_key(|c| c.in_flight).map(|c| Target::new(c.id, "shortest queue")))
//! #     }
//! # }
//!
//! let mut fleet = testing::fleet().prefill("p1:8000").prefill("p2:8000").decode("d1:8000");
//! fleet.load("p1:8000").in_flight = 3;
//!
//! let mut policy = testing::load::<Shortest>("{}", fleet);
//! let request = testing::request("/v1/chat/completions").json(r#"{"model": "m", "messages": []}"#);
//! assert_eq!(policy.pick(Phase::Prefill, &request).as_deref(), Some("p2:8000"));
//! ```
//!
//! Functions here panic where the router would refuse what the policy did, and
//! say why: they are for tests.

mod fleet;
mod logged;
mod request;
mod run;

pub use fleet::{Fleet, fleet};
pub use logged::captured_log;
pub(crate) use logged::record;
pub use request::{TestRequest, request};
pub use run::{Run, load};
