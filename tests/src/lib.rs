//! Everything the end-to-end tests of edge-router stand on: a simulated vLLM engine ([`engine`]), a harness that
//! runs the real router binary ([`router`]), and an HTTP client that shows each frame as it arrives ([`client`]).
//!
//! The router is never linked in: it is run as its users run it, and talked to over loopback only. Build it first
//! (`cargo build -p edge-router`), or say where it is in `EDGE_ROUTER_BIN`.
//!
//! ```no_run
//! # async fn test() -> anyhow::Result<()> {
//! use edge_router_tests::engine::Fault;
//! use edge_router_tests::fleet::Fleet;
//! use serde_json::json;
//!
//! let fleet = Fleet::start(1, 2).await?;
//! let router = fleet.router().policy("cache_aware.wasm").start().await?;
//! fleet.decode[0].fault(Fault::status(503).header("retry-after", "1").on_decode().times(2));
//!
//! let body = json!({ "prompt": "Tell me a story.", "max_tokens": 8, "stream": true });
//! let said = router.stream("/v1/completions", &body).await?.transcript().await?;
//! assert_eq!(said.text(), fleet.baseline("/v1/completions", &body).await?.text());
//! fleet.assert_quiescent().await;
//! # Ok(())
//! # }
//! ```

pub mod client;
pub mod engine;
pub mod fleet;
pub mod patience;
pub mod prometheus;
pub mod router;
pub mod sse;

mod lock;
