//! The integration tests, one file per theme.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails, in a helper too")]

mod captures;
mod engine;
mod failures;
mod harness;
mod load;
mod pipeline;
mod policies;
mod reload;
