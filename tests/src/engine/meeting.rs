//! Where two legs meet whose KV cache prefill writes itself: NIXL push (engine contract §4.3) and MoRIIO WRITE (§3.6).
//!
//! Either may come first. Prefill keeps decode's word of where its blocks are, decode waits for the write; and it waits
//! for good, as nothing tells it that prefill will never come.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::blocks::BlockId;
use super::rank::Rank;
use super::side_channel::{Ask, Reply, ask};
use super::transfer::LoadFailed;

/// Where decode wants to have a KV cache.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Target {
    /// What decode calls it.
    pub(crate) request_id: String,
    pub(crate) engine_id: Option<String>,
    /// Decode's side channel; with MoRIIO, prefill knows it from its own request.
    pub(crate) at: Option<(String, u16)>,
    pub(crate) decode_rank: u16,
    pub(crate) blocks: Vec<BlockId>,
}

/// MoRIIO: the decode engine that prefill was told of.
#[derive(Clone, Debug)]
pub(crate) struct DecodeAt {
    pub(crate) host: String,
    pub(crate) notify_port: u16,
}

/// What one DP rank knows of legs that have not met yet.
#[derive(Default)]
pub(crate) struct Meetings {
    /// At prefill: what decode has announced, and until when it is remembered.
    targets: HashMap<String, (Target, Option<Instant>)>,
    /// At prefill, MoRIIO: whom to write to.
    decoders: HashMap<String, DecodeAt>,
    /// At prefill, MoRIIO: transfers that have ended; who comes with their ids later is not heard.
    terminal: HashSet<String>,
    /// At decode: who waits for a write.
    arrivals: HashMap<String, oneshot::Sender<Result<(), LoadFailed>>>,
}

/// Decode's end: resolves when prefill has written, or has said that it will not.
pub(crate) fn expect(rank: &Rank, request_id: &str) -> oneshot::Receiver<Result<(), LoadFailed>> {
    let (arrival, arrived) = oneshot::channel();
    rank.core().meetings.arrivals.insert(request_id.to_owned(), arrival);
    arrived
}

/// Decode's end: a write has landed, where it was meant to or not.
pub(crate) fn written(rank: &Rank, request_id: &str, blocks: &[(BlockId, Vec<u32>)]) {
    let mut core = rank.core();
    for (block, tokens) in blocks {
        if core.pool.read(*block).is_some() {
            core.pool.write(*block, tokens);
        }
    }
    if let Some(arrival) = core.meetings.arrivals.remove(request_id) {
        let _ = arrival.send(Ok(()));
    }
}

/// Decode's end: prefill will not write.
pub(crate) fn failed(rank: &Rank, request_id: &str) {
    if let Some(arrival) = rank.core().meetings.arrivals.remove(request_id) {
        let _ = arrival.send(Err(LoadFailed));
    }
}

/// Prefill's end: decode's blocks for the other leg of `join`, remembered until `deadline`.
pub(crate) fn announce(rank: &Arc<Rank>, join: &str, target: Target, deadline: Option<Instant>) {
    let mut core = rank.core();
    if target.at.is_none() && core.meetings.terminal.contains(join) {
        return;
    }
    core.meetings.targets.insert(join.to_owned(), (target, deadline));
    drop(core);
    write_if_met(rank, join);
}

/// Prefill's end: the request of `join` is finished and pinned. Writes, if decode has announced itself.
pub(crate) fn write_if_met(rank: &Arc<Rank>, join: &str) {
    let mut core = rank.core();
    let Some(request) = core.leases.joined(join).map(str::to_owned) else { return };
    let Some((target, deadline)) = core.meetings.targets.remove(join) else { return };
    let at = match (&target.at, core.meetings.decoders.remove(join)) {
        (None, Some(decode)) => {
            decode.notify_port.checked_add(target.decode_rank).map(|port| (decode.host, port))
        }
        (at, _) => at.clone(),
    };
    drop(core);
    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return;
    }
    let Some(at) = at else { return };
    let (to_write, join) = (Arc::clone(rank), join.to_owned());
    rank.spawn(async move { write(&to_write, &request, &join, target, at).await });
}

async fn write(rank: &Rank, request: &str, join: &str, target: Target, at: (String, u16)) {
    sleep(rank.faults.read_delay()).await;
    let written = match content(rank, request, target.blocks) {
        Some(blocks) => {
            let Target { engine_id, request_id, .. } = target;
            let reply = ask(&at.0, at.1, &Ask::Write { engine_id, request_id, blocks }).await;
            matches!(reply, Ok(Reply::Noted))
        }
        None => false,
    };
    let mut core = rank.core();
    if !written {
        // The blocks stay pinned until the lease ends.
        core.counters.failed_writes += 1;
        return;
    }
    core.meetings.end(join);
    if let Some(blocks) = core.leases.complete(request) {
        core.counters.completed += 1;
        core.pool.release(&blocks);
    }
    drop(core);
    rank.notify_waiting();
}

/// What is to be written: the end of the prompt, as decode may have its beginning. `None` if prefill has less than
/// decode wants.
fn content(rank: &Rank, request: &str, wanted: Vec<BlockId>) -> Option<Vec<(BlockId, Vec<u32>)>> {
    let core = rank.core();
    let pinned = &core.leases.get(request)?.blocks;
    let from = pinned.len().checked_sub(wanted.len())?;
    let content = pinned.get(from..)?.iter().map(|block| core.pool.read(*block).unwrap_or_default().to_vec());
    Some(wanted.into_iter().zip(content).collect())
}

impl Meetings {
    /// MoRIIO, at prefill: whom the transfer is for.
    pub(crate) fn is_for(&mut self, transfer_id: &str, decode: DecodeAt) {
        self.decoders.insert(transfer_id.to_owned(), decode);
    }

    /// The transfer has ended, one way or another; says whether it had not before.
    pub(crate) fn end(&mut self, join: &str) -> bool {
        self.targets.remove(join);
        self.decoders.remove(join);
        self.terminal.insert(join.to_owned())
    }
}
