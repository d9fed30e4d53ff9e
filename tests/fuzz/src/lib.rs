//! The router's `body` module alone: built with it whole, a fuzzer would wait for wasmtime.

#[path = "../../../router/src/body/prompt.rs"]
pub mod prompt;
#[path = "../../../router/src/body/scan.rs"]
pub mod scan;
#[path = "../../../router/src/body/splice.rs"]
pub mod splice;
#[path = "../../../router/src/body/sse.rs"]
pub mod sse;
