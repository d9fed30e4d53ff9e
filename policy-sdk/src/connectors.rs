//! What the KV connectors of the engines want in each leg, as pure functions.
//! Connector policies and the router's own defaults call the same code.

mod address;
mod params;
mod single_token;

pub mod moriio;
pub mod nixl;
pub mod nixl_push;
pub mod plain;

/// The field that tells prefill to keep its KV cache, and carries the
/// coordinates back and on to decode.
pub const KV_TRANSFER_PARAMS: &str = "kv_transfer_params";

#[cfg(test)]
mod golden;
