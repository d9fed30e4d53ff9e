//! `kv_transfer_params`: what prefill says about its blocks, and what decode makes of what it is told.

use serde::Serialize;
use serde_json::Value;

use super::blocks::BlockId;

/// What a prefill engine returns (NIXL pull, vLLM 0.32; the order of the keys is the engine's).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KvParams {
    pub(crate) do_remote_prefill: bool,
    pub(crate) do_remote_decode: bool,
    /// One list per KV cache group; this engine has one group.
    pub(crate) remote_block_ids: [Vec<BlockId>; 1],
    pub(crate) remote_engine_id: String,
    pub(crate) remote_request_id: String,
    pub(crate) remote_host: String,
    pub(crate) remote_port: u16,
    pub(crate) tp_size: u32,
    pub(crate) dcp_size: u32,
    pub(crate) pp_size: u32,
    pub(crate) remote_num_tokens: usize,
    pub(crate) remote_blocks_expiry_time: Option<f64>,
    pub(crate) transfer_mode: &'static str,
    /// Missing when more than one token was generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote_prefill_cached_tokens: Option<usize>,
}

/// Where a prompt's KV cache lies. A key that was present but null fails at the handshake, hence the options.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) engine_id: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
    /// Without `tp_size` the engine sends no heartbeats.
    pub(crate) heartbeats: bool,
    /// What prefill itself found in its cache, which decode then reports to the client.
    pub(crate) prefill_cached_tokens: Option<usize>,
}

/// What a request's `kv_transfer_params` make an engine do.
#[derive(Clone, Debug)]
pub(crate) enum Handoff {
    /// Nothing: the prompt is computed here, and freed at the end.
    None,
    /// Pin the blocks at the end and say where they are.
    Offer,
    /// Fetch the blocks from a peer.
    Fetch(Remote),
    /// An assertion of the scheduler fails, and takes the engine with it.
    Die,
    /// A load that nobody serves: parked for good.
    Park,
}

impl Handoff {
    /// Follows vLLM's pull scheduler: which keys it tests, and what it asserts.
    pub(crate) fn of(params: Option<&Value>) -> Self {
        let Some(params) = params.and_then(Value::as_object).filter(|params| !params.is_empty()) else {
            return Self::None;
        };
        let truthy = |key| params.get(key).and_then(Value::as_bool).unwrap_or(false);
        if !truthy("do_remote_prefill") {
            return if truthy("do_remote_decode") { Self::Offer } else { Self::None };
        }
        let Some(blocks) = params.get("remote_block_ids").and_then(only_group) else { return Self::Die };
        let required = ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"];
        if required.iter().any(|key| !params.contains_key(*key)) {
            return Self::Park;
        }
        let text = |key| params.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = |key| params.get(key).and_then(Value::as_u64);
        Self::Fetch(Remote {
            blocks,
            engine_id: text("remote_engine_id"),
            request_id: text("remote_request_id"),
            host: text("remote_host"),
            port: number("remote_port").and_then(|port| u16::try_from(port).ok()),
            heartbeats: params.contains_key("tp_size"),
            prefill_cached_tokens: number("remote_prefill_cached_tokens").map(|tokens| tokens as usize),
        })
    }
}

/// The block ids of a non-empty list of lists; anything else fails in the engine's scheduler.
fn only_group(ids: &Value) -> Option<Vec<BlockId>> {
    let group = ids.as_array()?.first()?.as_array()?;
    group.iter().map(|id| id.as_u64().and_then(|id| BlockId::try_from(id).ok())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn full() -> Value {
        json!({
            "do_remote_prefill": true, "remote_block_ids": [[1, 2]], "remote_engine_id": "e",
            "remote_request_id": "r", "remote_host": "h", "remote_port": 1, "tp_size": 1,
        })
    }

    #[test]
    fn falsy_params_mean_no_handoff() {
        for params in [json!(null), json!({}), json!({"do_remote_prefill": false})] {
            assert!(matches!(Handoff::of(Some(&params)), Handoff::None), "{params}");
        }
        assert!(matches!(Handoff::of(None), Handoff::None));
    }

    #[test]
    fn missing_blocks_are_fatal_and_missing_names_are_never_served() {
        assert!(matches!(Handoff::of(Some(&full())), Handoff::Fetch(_)));
        for blocks in [json!(null), json!([]), json!([1, 2])] {
            let mut params = full();
            params["remote_block_ids"] = blocks;
            assert!(matches!(Handoff::of(Some(&params)), Handoff::Die), "{params}");
        }
        for key in ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"] {
            let mut params = full();
            params.as_object_mut().unwrap().remove(key);
            assert!(matches!(Handoff::of(Some(&params)), Handoff::Park), "{params}");
        }
    }

    #[test]
    fn a_null_name_is_present() {
        let mut params = full();
        params["remote_engine_id"] = Value::Null;
        let Handoff::Fetch(remote) = Handoff::of(Some(&params)) else { panic!("not fetched") };
        assert_eq!(remote.engine_id, None);
    }
}
