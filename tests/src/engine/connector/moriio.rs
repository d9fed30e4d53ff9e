//! MoRIIO (engine contract §3). READ: decode copies prefill's blocks and releases them. WRITE: decode announces its
//! blocks, and prefill writes into them. A transfer id joins the legs, and both ends must know each other's address.

mod address;

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, sleep_until};

use crate::engine::blocks::BlockId;
use crate::engine::handoff::{Handoff, Keep, Offer, Order, Source, truthy};
use crate::engine::lease::Kept;
use crate::engine::load::Hanging;
use crate::engine::meeting::{self, DecodeAt};
use crate::engine::rank::Rank;
use crate::engine::sequence::Sequence;
use crate::engine::side_channel::{Ask, Reply, ask};
use crate::engine::transfer::LoadFailed;

use super::nixl::only_group;
use address::Address;

/// Who moves the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
}

/// One leg's view of a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) id: String,
    pub(crate) prefill_cached_tokens: Option<usize>,
    /// The other leg's engine.
    peer: Address,
    engine_id: Option<String>,
    /// None if decode was told of no blocks.
    blocks: Option<Vec<BlockId>>,
    dp_size: u16,
    dp_rank: u16,
    /// Decode announces itself only if its own DP rank is prefill's.
    same_rank_only: bool,
}

/// What prefill returns (the order of the keys is the engine's).
#[derive(Debug, Serialize)]
struct KvParams<'a> {
    do_remote_prefill: bool,
    do_remote_decode: bool,
    remote_block_ids: [Vec<BlockId>; 1],
    remote_engine_id: &'a str,
    remote_host: String,
    remote_handshake_port: u16,
    remote_notify_port: u16,
    remote_dp_rank: usize,
    remote_dp_rank_override: bool,
    remote_dp_size: usize,
    remote_dp_size_local: usize,
    tp_size: u32,
    transfer_id: &'a str,
    remote_prefill_cached_tokens: usize,
}

/// Follows `add_new_req` of vLLM's MoRIIO connector, which indexes its keys without a test and raises, inside the
/// engine's step, if it finds no peer.
pub(crate) fn handoff(mode: Mode, params: &Map<String, Value>, id: &str) -> Handoff {
    let (fetches, keeps) = (truthy(params, "do_remote_prefill"), truthy(params, "do_remote_decode"));
    if !fetches && !keeps {
        return Handoff::NONE;
    }
    let complete =
        ["transfer_id", "remote_engine_id", "remote_block_ids"].iter().all(|key| params.contains_key(*key));
    let peer = Address::of(params)
        .or_else(|| if fetches { Address::prefill_in(id) } else { Address::decode_in(id) });
    let (true, Some(peer), Some(id)) = (complete, peer, params.get("transfer_id").and_then(Value::as_str))
    else {
        return Handoff::stuck(Source::Die);
    };
    let number = |key| params.get(key).and_then(Value::as_u64).and_then(|number| u16::try_from(number).ok());
    let transfer = Transfer {
        id: id.to_owned(),
        prefill_cached_tokens: number("remote_prefill_cached_tokens").map(usize::from),
        peer,
        engine_id: params.get("remote_engine_id").and_then(Value::as_str).map(str::to_owned),
        blocks: params.get("remote_block_ids").and_then(only_group).filter(|blocks| !blocks.is_empty()),
        dp_size: number("remote_dp_size").unwrap_or(1),
        dp_rank: number("remote_dp_rank").unwrap_or(0),
        same_rank_only: truthy(params, "remote_dp_rank_override"),
    };
    match (fetches, mode) {
        (true, Mode::Read) => Handoff::fetch(Order::MoriioRead(transfer)),
        (true, Mode::Write) => Handoff::fetch(Order::MoriioWrite(transfer)),
        (false, Mode::Read) => Handoff::keep(Keep::MoriioRead(transfer)),
        (false, Mode::Write) => Handoff::keep(Keep::MoriioWrite(transfer)),
    }
}

/// READ, decode's end: copies what prefill's blocks hold and releases them. Without block ids there is nothing to copy,
/// which decode does not notice.
pub(crate) async fn read(
    rank: &Arc<Rank>,
    transfer: &Transfer,
    sequence: &mut Sequence,
) -> Result<(), LoadFailed> {
    let Some(blocks) = &transfer.blocks else {
        sequence.loaded();
        return Ok(());
    };
    if !sequence.is_here() {
        let from = blocks.len().saturating_sub(sequence.wanted().len());
        let content = copy(rank, transfer, blocks.get(from..).unwrap_or_default()).await?;
        sequence.take_over(&content);
    }
    sequence.loaded();
    if let Some(port) = transfer.peer.notify(transfer.dp_rank)
        && !rank.is_silent()
    {
        drop(ask(&transfer.peer.host, port, &Ask::Release { transfer_id: transfer.id.clone() }).await);
    }
    Ok(())
}

async fn copy(rank: &Rank, transfer: &Transfer, blocks: &[BlockId]) -> Result<Vec<Vec<u32>>, LoadFailed> {
    let started = Instant::now();
    let port = transfer.peer.handshake(transfer.dp_rank).ok_or(LoadFailed)?;
    let engine_id = transfer.engine_id.clone().unwrap_or_default();
    let read = Ask::Read { engine_id, handshake: rank.config.handshake(), blocks: blocks.to_vec() };
    match ask(&transfer.peer.host, port, &read).await {
        Ok(Reply::Blocks(content)) => Ok(content),
        _ => {
            sleep_until(started + rank.config.moriio_transfer()).await;
            Err(LoadFailed)
        }
    }
}

/// READ, prefill's end: pins the blocks until they are released, and says where they are.
pub(crate) fn offer_to_read(rank: &Rank, transfer: &Transfer, sequence: &mut Sequence) -> Option<Offer> {
    let blocks = sequence.pin(&transfer.id, transfer.id.clone(), Kept::Prefill, rank.config.moriio_defer());
    offer(rank, transfer, blocks, sequence)
}

/// WRITE, prefill's end: writes as soon as decode is known, and says where the blocks are all the same. Decode that
/// is not known in time is told that nothing will come.
pub(crate) fn offer_to_write(
    rank: &Arc<Rank>,
    transfer: &Transfer,
    sequence: &mut Sequence,
) -> Option<Offer> {
    let defer = rank.config.moriio_defer();
    let decode = DecodeAt { host: transfer.peer.host.clone(), notify_port: transfer.peer.notify_port };
    // Before the blocks are pinned: decode's announcement may come in between, and finds whom to write to.
    rank.core().meetings.is_for(&transfer.id, decode);
    let blocks = sequence.pin(&transfer.id, transfer.id.clone(), Kept::Prefill, defer);
    meeting::write_if_met(rank, &transfer.id);
    let (waiting, transfer_id) = (Arc::clone(rank), transfer.clone());
    rank.spawn(async move {
        sleep(defer).await;
        give_up(&waiting, &transfer_id).await;
    });
    offer(rank, transfer, blocks, sequence)
}

/// Tells each DP rank of decode that nothing will be written, unless it was.
async fn give_up(rank: &Rank, transfer: &Transfer) {
    if !rank.core().meetings.end(&transfer.id) {
        return;
    }
    rank.notify_waiting();
    for dp_rank in 0..transfer.dp_size {
        if let Some(port) = transfer.peer.notify(dp_rank) {
            drop(
                ask(&transfer.peer.host, port, &Ask::WriteFailed { transfer_id: transfer.id.clone() }).await,
            );
        }
    }
}

fn offer(rank: &Rank, transfer: &Transfer, blocks: Vec<BlockId>, sequence: &Sequence) -> Option<Offer> {
    let params = KvParams {
        do_remote_prefill: true,
        do_remote_decode: false,
        remote_block_ids: [blocks],
        remote_engine_id: &rank.place.engine_id,
        remote_host: rank.config.listen.ip().to_string(),
        remote_handshake_port: rank.place.side_base,
        remote_notify_port: rank.place.notify_base,
        remote_dp_rank: rank.place.index,
        remote_dp_rank_override: true,
        remote_dp_size: rank.config.dp_size,
        remote_dp_size_local: rank.config.dp_size,
        tp_size: 1,
        transfer_id: &transfer.id,
        remote_prefill_cached_tokens: sequence.cached_tokens(),
    };
    Offer::new(&params, false)
}

/// WRITE, decode's end: announces its blocks, and waits: for good, if prefill never comes. That nobody hears the
/// announcement, or hears it and throws it away, shows in nothing else.
pub(crate) async fn await_write(
    rank: &Arc<Rank>,
    transfer: &Transfer,
    sequence: &mut Sequence,
) -> Result<(), LoadFailed> {
    let arrived = meeting::expect(rank, &transfer.id);
    let rank_index = rank.place.index as u16;
    if !transfer.same_rank_only || transfer.dp_rank == rank_index {
        let announcement = Ask::RemoteBlocks {
            transfer_id: transfer.id.clone(),
            block_notify_list: sequence.wanted().to_vec(),
            decode_rank: rank_index,
        };
        if let Some(port) = transfer.peer.notify(transfer.dp_rank) {
            drop(ask(&transfer.peer.host, port, &announcement).await);
        }
    }
    Hanging::until(rank, arrived).await?;
    sequence.loaded();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn source(mode: Mode, params: &Value, id: &str) -> Source {
        handoff(mode, params.as_object().unwrap(), id).source
    }

    #[test]
    fn a_missing_key_or_peer_is_fatal() {
        let full = json!({
            "do_remote_prefill": true, "transfer_id": "tx", "remote_engine_id": null, "remote_block_ids": null,
            "remote_host": "h", "remote_handshake_port": "1", "remote_notify_port": 2,
        });
        assert!(matches!(source(Mode::Write, &full, ""), Source::Fetch(Order::MoriioWrite(_))));
        assert!(matches!(source(Mode::Read, &full, ""), Source::Fetch(Order::MoriioRead(_))));
        for key in ["transfer_id", "remote_engine_id", "remote_block_ids", "remote_host"] {
            let mut params = full.clone();
            params.as_object_mut().unwrap().remove(key);
            assert!(matches!(source(Mode::Read, &params, "cmpl-1"), Source::Die), "{key}");
        }
    }

    #[test]
    fn the_request_id_may_name_the_peers() {
        let params = json!({
            "do_remote_decode": true, "transfer_id": "tx", "remote_engine_id": null, "remote_block_ids": null,
        });
        let id = format!(
            "cmpl-___prefill_addr_host:p,handshake:1,notify:2___decode_addr_host:d,handshake:3,notify:4_{:032x}",
            7
        );
        let Keep::MoriioRead(transfer) = handoff(Mode::Read, params.as_object().unwrap(), &id).keep else {
            panic!("nothing is kept")
        };
        assert_eq!((transfer.peer.host.as_str(), transfer.peer.notify_port), ("d", 4));
    }
}
