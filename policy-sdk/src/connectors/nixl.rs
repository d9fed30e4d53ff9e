//! NIXL, pull: prefill is told to keep its KV cache for a remote decode, answers
//! with the coordinates, and decode gets these verbatim.
//!
//! Field names and rules follow vLLM 0.33 (`kv_connector/v1/nixl/`) and hold for
//! the engines before it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::KV_TRANSFER_PARAMS;
use super::single_token::{self, Token};
use crate::{Leg, Request};

pub use routable::with_routable_host;

mod routable;
pub mod token_ids;

/// Only `do_remote_decode` matters to prefill; the nulls are what the upstream
/// proxies send.
const KEEP_FOR_DECODE: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// The prefill leg: one token, not streamed, and the KV cache kept for decode.
///
/// What shapes the prompt (`messages`, `tools`, `chat_template`, `cache_salt`,
/// …) is left alone, so that both engines see the same one; so is
/// `response_format`, which some chat templates render.
///
/// If a decode instance kept the KV cache of the conversation's last turn,
/// prefill is told where: what decode returned asks it to keep the new one, too.
pub fn prefill_leg(request: &Request<'_>) -> Leg {
    let params = request.readback().map_or(KEEP_FOR_DECODE.into(), Cow::into_owned);
    single_token::leg(request, Token::Any).set(KV_TRANSFER_PARAMS, params)
}

/// The decode leg: the client's body and what prefill returned, byte for byte.
/// Where that is not [`usable`], the body goes as it is and decode computes the
/// prompt itself; half of the coordinates would make it fail or read foreign
/// blocks.
pub fn decode_leg(kv_params: Option<&str>) -> Leg {
    match kv_params {
        Some(params) if usable(params).is_ok() => Leg::new().set(KV_TRANSFER_PARAMS, params.to_owned()),
        _ => Leg::new(),
    }
}

/// Why decode could not fetch a KV cache with these params.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Not a JSON object, or a key of another type than the engines write.
    #[error("not the KV transfer params of NIXL: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A key that decode needs is absent or null.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// The params don't ask decode to fetch anything, such as those that a
    /// decode instance returns for the next turn.
    #[error("`do_remote_prefill` is false")]
    NotForDecode,
    /// There is nothing to fetch.
    #[error("`remote_block_ids` names no block")]
    NoBlocks,
}

/// Whether decode can fetch the KV cache with these params: all keys that it
/// can't do without are there, and they name at least one block.
///
/// # Errors
///
/// The first thing that is wrong.
pub fn usable(kv_params: &str) -> Result<(), Unusable> {
    #[derive(Deserialize)]
    struct Coordinates {
        do_remote_prefill: Option<bool>,
        remote_block_ids: Option<Vec<Value>>,
        remote_engine_id: Option<Value>,
        remote_request_id: Option<Value>,
        remote_host: Option<String>,
        remote_port: Option<u16>,
    }
    let params: Coordinates = serde_json::from_str(kv_params)?;
    if !params.do_remote_prefill.ok_or(Unusable::Missing("do_remote_prefill"))? {
        return Err(Unusable::NotForDecode);
    }
    let groups = params.remote_block_ids.ok_or(Unusable::Missing("remote_block_ids"))?;
    params.remote_engine_id.ok_or(Unusable::Missing("remote_engine_id"))?;
    params.remote_request_id.ok_or(Unusable::Missing("remote_request_id"))?;
    params.remote_host.ok_or(Unusable::Missing("remote_host"))?;
    params.remote_port.ok_or(Unusable::Missing("remote_port"))?;
    if name_a_block(&groups) { Ok(()) } else { Err(Unusable::NoBlocks) }
}

/// Whether there is anything to fetch: one list of block ids per KV cache
/// group, or one flat list in older engines.
pub(super) fn name_a_block(groups: &[Value]) -> bool {
    groups.iter().any(|group| group.as_array().map_or(!group.is_null(), |ids| !ids.is_empty()))
}

#[cfg(test)]
mod tests;
