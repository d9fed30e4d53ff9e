//! Request and response bodies as bytes: where the top-level fields lie, how a few of them are
//! exchanged without touching the rest, and how event streams pass through.
//!
//! Knows nothing of instances, policies or HTTP routes.

pub mod media;
pub mod private;
pub mod prompt;
pub mod read;
pub mod rename;
pub mod scan;
pub mod splice;
pub mod spoken;
pub mod sse;
pub mod turn;
