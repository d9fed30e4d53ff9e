//! The integration tests, one file per theme.

mod captures;
mod engine;
mod harness;
