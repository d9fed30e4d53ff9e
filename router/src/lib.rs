//! A router for LLM engines that run prefill and decode apart. `ARCHITECTURE.md` tells the whole;
//! `pipeline` is where to start reading.

pub mod body;
pub mod error;
pub mod fleet;
pub mod metrics;
pub mod policy;
pub mod upstream;
