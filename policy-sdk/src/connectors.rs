//! What the KV connectors of the engines want in each leg, as pure functions.
//! Connector policies and the router's own defaults call the same code.

mod address;
mod agreed;
mod params;
mod single_token;

pub mod ec;
pub mod labels;
pub mod mooncake;
pub mod moriio;
pub mod nixl;
pub mod nixl_push;
pub mod p2p_nccl;
pub mod plain;
pub mod prefill_answer;

/// The field that tells prefill to keep its KV cache, and carries the
/// coordinates back and on to decode.
pub const KV_TRANSFER_PARAMS: &str = "kv_transfer_params";

/// The field in which an encoder says where its encodings are, and that carries
/// this on to whoever computes the prompt.
pub const EC_TRANSFER_PARAMS: &str = "ec_transfer_params";

/// The header that pins a leg to a data-parallel rank.
pub(crate) const DATA_PARALLEL_RANK: &str = "x-data-parallel-rank";

/// The header that names a request; engines take it for their own id.
pub(crate) const REQUEST_ID: &str = "x-request-id";

#[cfg(test)]
mod golden;
