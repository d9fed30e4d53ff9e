//! NIXL's way back: a decode engine keeps prompt and answer for the conversation's next turn, and that turn's prefill
//! reads them (`bidirectional_kv_xfer`, engine contract §4.4).

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::nixl::{self, KvParams, Remote, only_group};
use crate::engine::handoff::{Handoff, Keep, Offer, Order, Source, truthy};
use crate::engine::lease::Kept;
use crate::engine::rank::Rank;
use crate::engine::sequence::Sequence;
use crate::engine::side_channel::{Ask, Reply, ask};
use crate::engine::transfer::{LoadFailed, fetch, notify};

/// Fewer tokens than this are computed again rather than read (`kv_recompute_threshold`).
const THRESHOLD: usize = 64;

/// The blocks of an earlier turn.
#[derive(Clone, Debug)]
pub(crate) struct Readback {
    remote: Remote,
    tokens: Option<usize>,
    /// By the clock of the engine that keeps them; without it they are read unasked.
    expiry: Option<f64>,
}

/// As [`nixl::handoff`], except that decode keeps its blocks, and that prefill can read them.
pub(crate) fn handoff(params: &Map<String, Value>) -> Handoff {
    if truthy(params, "do_remote_prefill") {
        return Handoff { keep: Keep::Readback, ..nixl::handoff(params) };
    }
    let blocks = params.get("remote_block_ids").and_then(only_group).filter(|blocks| !blocks.is_empty());
    let Some(blocks) = blocks.filter(|_| truthy(params, "do_remote_decode")) else {
        return nixl::handoff(params);
    };
    let readback = Readback {
        remote: Remote::new(params, blocks),
        tokens: params.get("remote_num_tokens").and_then(Value::as_u64).map(|tokens| tokens as usize),
        expiry: params.get("remote_blocks_expiry_time").and_then(Value::as_f64),
    };
    Handoff { source: Source::Fetch(Order::Readback(readback)), keep: Keep::Pull }
}

/// Reads what the earlier turn has of this prompt, whatever it holds; computes the rest.
pub(crate) async fn pull(
    rank: &Rank,
    readback: &Readback,
    sequence: &mut Sequence,
) -> Result<(), LoadFailed> {
    let remote = &readback.remote;
    let tokens = readback.tokens.unwrap_or(usize::MAX).min(sequence.prompt_tokens());
    if tokens.saturating_sub(sequence.cached_tokens()) < THRESHOLD {
        notify(rank, remote).await;
        sequence.compute().await;
        return Ok(());
    }
    if let Some(expiry) = readback.expiry
        && is_expired(rank, remote, expiry).await?
    {
        return Err(LoadFailed);
    }
    let size = rank.config.block_size;
    let wanted =
        remote.blocks.get(sequence.cached_tokens() / size..tokens.div_ceil(size)).unwrap_or_default();
    let content = fetch(rank, remote, wanted).await?;
    sequence.take_over(&content);
    sequence.loaded_up_to(tokens).await;
    notify(rank, remote).await;
    Ok(())
}

/// Whether the time is over, or nearly, by the clock of the engine that keeps the blocks.
async fn is_expired(rank: &Rank, remote: &Remote, expiry: f64) -> Result<bool, LoadFailed> {
    let (Some(host), Some(port)) = (&remote.host, remote.port) else { return Err(LoadFailed) };
    match ask(host, port, &Ask::Clock).await {
        Ok(Reply::Clock(now)) => Ok(now + rank.config.readback_margin().as_secs_f64() >= expiry),
        _ => Err(LoadFailed),
    }
}

/// Pins prompt and answer for the next turn.
pub(crate) fn offer(rank: &Arc<Rank>, request_id: &str, sequence: &mut Sequence) -> Option<Offer> {
    let lease = rank.config.readback_lease();
    let expiry = rank.clock(Instant::now() + lease);
    let blocks = sequence.pin(request_id, request_id.to_owned(), Kept::Readback, lease);
    let mut params = KvParams::new(rank, request_id, blocks, sequence);
    params.do_remote_prefill = false;
    params.do_remote_decode = true;
    params.remote_blocks_expiry_time = Some(Some(expiry));
    Offer::new(&params, true)
}
