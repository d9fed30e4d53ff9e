//! The integration tests, one file per theme.

mod captures;
mod engine;
mod harness;
mod load;
mod pipeline;
mod policies;
mod reload;
