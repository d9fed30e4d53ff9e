//! A router for LLM engines that run prefill and decode apart. `ARCHITECTURE.md` tells the whole;
//! `pipeline` is where to start reading.

pub mod app;
pub mod body;
pub mod cli;
pub mod config;
pub mod discovery;
pub mod error;
pub mod fleet;
pub mod handoff;
pub mod headers;
pub mod metrics;
pub mod pipeline;
pub mod policy;
pub mod serve;
pub mod server;
pub mod telemetry;
pub mod upstream;
pub mod watch;
