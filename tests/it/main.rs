//! The integration tests, one file per theme.

mod captures;
mod engine;
mod harness;
mod load;
mod policies;
mod reload;
