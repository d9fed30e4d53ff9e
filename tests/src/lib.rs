//! Everything the end-to-end tests of edge-router stand on: a simulated vLLM engine ([`engine`]), a harness that
//! runs the real router binary ([`router`]), and an HTTP client that shows each frame as it arrives ([`client`]).
//!
//! The router is never linked in: it is run as its users run it, and talked to over loopback only.

pub mod client;
pub mod engine;
pub mod fleet;
pub mod patience;
pub mod prometheus;
pub mod router;
pub mod sse;

mod lock;
