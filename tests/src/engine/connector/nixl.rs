//! NIXL, decode reads: prefill says where its blocks are, decode copies them and tells prefill (engine contract §4.1,
//! §4.2, §13.4).

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::engine::blocks::BlockId;
use crate::engine::handoff::{Handoff, Keep, Offer, Order, Source, port, truthy};
use crate::engine::lease::Kept;
use crate::engine::rank::Rank;
use crate::engine::sequence::Sequence;
use crate::engine::transfer::{LoadFailed, fetch, notify};

/// What a prefill engine returns (vLLM 0.32; the order of the keys is the engine's).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KvParams {
    pub(crate) do_remote_prefill: bool,
    pub(crate) do_remote_decode: bool,
    /// One list per KV cache group; this engine has one group.
    remote_block_ids: [Vec<BlockId>; 1],
    remote_engine_id: String,
    remote_request_id: String,
    remote_host: String,
    remote_port: u16,
    tp_size: u32,
    dcp_size: u32,
    pp_size: u32,
    remote_num_tokens: usize,
    /// There, and null, in pull; not there in push; a time of the engine's own clock in a readback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote_blocks_expiry_time: Option<Option<f64>>,
    pub(crate) transfer_mode: &'static str,
    /// Missing when more than one token was generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_prefill_cached_tokens: Option<usize>,
}

impl KvParams {
    pub(crate) fn new(rank: &Rank, request_id: &str, blocks: Vec<BlockId>, sequence: &Sequence) -> Self {
        Self {
            do_remote_prefill: true,
            do_remote_decode: false,
            remote_block_ids: [blocks],
            remote_engine_id: rank.place.engine_id.clone(),
            remote_request_id: request_id.to_owned(),
            remote_host: rank.config.listen.ip().to_string(),
            remote_port: rank.place.side_port,
            tp_size: 1,
            dcp_size: 1,
            pp_size: 1,
            remote_num_tokens: sequence.computed(),
            remote_blocks_expiry_time: Some(None),
            transfer_mode: "pull",
            remote_prefill_cached_tokens: (sequence.generated() <= 1).then(|| sequence.cached_tokens()),
        }
    }
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

impl Remote {
    pub(crate) fn new(params: &Map<String, Value>, blocks: Vec<BlockId>) -> Self {
        let text = |key| params.get(key).and_then(Value::as_str).map(str::to_owned);
        Self {
            blocks,
            engine_id: text("remote_engine_id"),
            request_id: text("remote_request_id"),
            host: text("remote_host"),
            port: port(params.get("remote_port")),
            heartbeats: params.contains_key("tp_size"),
            prefill_cached_tokens: params
                .get("remote_prefill_cached_tokens")
                .and_then(Value::as_u64)
                .map(|tokens| tokens as usize),
        }
    }
}

/// Follows vLLM's pull scheduler: which keys it tests, and what it asserts.
pub(crate) fn handoff(params: &Map<String, Value>) -> Handoff {
    if !truthy(params, "do_remote_prefill") {
        if !truthy(params, "do_remote_decode") {
            return Handoff::NONE;
        }
        // Blocks to read back promise a load that only the bidirectional connector registers.
        let readback =
            params.get("remote_block_ids").and_then(only_group).is_some_and(|blocks| !blocks.is_empty());
        return if readback { Handoff::stuck(Source::Park) } else { Handoff::keep(Keep::Pull) };
    }
    let Some(blocks) = params.get("remote_block_ids").and_then(only_group) else {
        return Handoff::stuck(Source::Die);
    };
    let required = ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"];
    if required.iter().any(|key| !params.contains_key(*key)) {
        return Handoff::stuck(Source::Park);
    }
    Handoff::fetch(Order::Pull(Remote::new(params, blocks)))
}

/// The block ids of a non-empty list of lists; anything else fails in the engine's scheduler.
pub(crate) fn only_group(ids: &Value) -> Option<Vec<BlockId>> {
    let group = ids.as_array()?.first()?.as_array()?;
    group.iter().map(|id| id.as_u64().and_then(|id| BlockId::try_from(id).ok())).collect()
}

/// Copies the part of the prompt that is not here from a peer's blocks, then frees the peer. What the blocks hold is
/// taken as it is; only the last prompt token is always computed here.
pub(crate) async fn pull(rank: &Rank, remote: &Remote, sequence: &mut Sequence) -> Result<(), LoadFailed> {
    let content = if sequence.is_here() {
        Vec::new()
    } else {
        // A shorter prompt takes the end of the peer's list, as a prompt with a local prefix does.
        let from = remote.blocks.len().saturating_sub(sequence.wanted().len());
        fetch(rank, remote, remote.blocks.get(from..).unwrap_or_default()).await?
    };
    sequence.take_over(&content);
    sequence.loaded();
    notify(rank, remote).await;
    Ok(())
}

/// Pins the blocks for the lease, and says where they are.
pub(crate) fn offer(rank: &Arc<Rank>, request_id: &str, sequence: &mut Sequence) -> Option<Offer> {
    let blocks = sequence.pin(request_id, request_id.to_owned(), Kept::Prefill, rank.config.lease());
    Offer::new(&KvParams::new(rank, request_id, blocks, sequence), false)
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

    fn source(params: &Value) -> Source {
        handoff(params.as_object().unwrap()).source
    }

    #[test]
    fn missing_blocks_are_fatal_and_missing_names_are_never_served() {
        assert!(matches!(source(&full()), Source::Fetch(Order::Pull(_))));
        for blocks in [json!(null), json!([]), json!([1, 2])] {
            let mut params = full();
            params["remote_block_ids"] = blocks;
            assert!(matches!(source(&params), Source::Die), "{params}");
        }
        for key in ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"] {
            let mut params = full();
            params.as_object_mut().unwrap().remove(key);
            assert!(matches!(source(&params), Source::Park), "{params}");
        }
    }

    #[test]
    fn a_null_name_is_present() {
        let mut params = full();
        params["remote_engine_id"] = Value::Null;
        let Source::Fetch(Order::Pull(remote)) = source(&params) else { panic!("not fetched") };
        assert_eq!(remote.engine_id, None);
    }

    #[test]
    fn prefill_that_is_told_to_read_back_and_cannot_is_parked() {
        let asked = json!({ "do_remote_decode": true, "remote_block_ids": [[1]] });
        assert!(matches!(source(&asked), Source::Park));
        let asked = json!({ "do_remote_decode": true, "remote_block_ids": null });
        assert!(matches!(handoff(asked.as_object().unwrap()).keep, Keep::Pull));
    }
}
