//! The integration tests, one file per theme.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails, in a helper too")]

mod admin;
mod affinity;
mod captures;
mod connections;
mod connectors;
mod discovery;
mod drain;
mod encode;
mod engine;
mod failures;
mod features;
mod front_door;
mod harness;
mod health;
mod in_flight;
mod load;
mod matrix;
mod openai_client;
mod opening;
mod pipeline;
mod policies;
mod readback;
mod reload;
mod render;
mod review;
mod slow_reader;
