//! Mooncake: prefill keeps its blocks under a transfer id and says nothing; decode finds prefill's worker by its
//! bootstrap server, and waits for the transfer (engine contract §5).

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::client::Client;
use crate::engine::config::Role;
use crate::engine::handoff::{Handoff, Keep, Order, Source, truthy};
use crate::engine::lease::Kept;
use crate::engine::load::Hanging;
use crate::engine::rank::Rank;
use crate::engine::sequence::Sequence;
use crate::engine::side_channel::{Ask, Reply, ask};
use crate::engine::transfer::LoadFailed;

/// What decode is told. A key that is there and null fails where it is used, hence the options.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    id: Option<String>,
    engine_id: Option<String>,
    bootstrap: Option<String>,
}

/// Follows vLLM's scheduler: a role that is asked for the other's part fails an assertion.
pub(crate) fn handoff(role: Role, params: &Map<String, Value>) -> Handoff {
    let text = |key| params.get(key).and_then(Value::as_str).map(str::to_owned);
    if truthy(params, "do_remote_prefill") {
        if role == Role::Prefill {
            return Handoff::stuck(Source::Die);
        }
        let required = ["remote_engine_id", "remote_bootstrap_addr", "transfer_id"];
        if required.iter().any(|key| !params.contains_key(*key)) {
            return Handoff::stuck(Source::Park);
        }
        let bootstrap = text("remote_bootstrap_addr");
        let transfer = Transfer { id: text("transfer_id"), engine_id: text("remote_engine_id"), bootstrap };
        return Handoff::fetch(Order::Mooncake(transfer));
    }
    if !truthy(params, "do_remote_decode") {
        return Handoff::NONE;
    }
    match (role, text("transfer_id")) {
        (Role::Decode, _) => Handoff::stuck(Source::Die),
        (_, Some(transfer_id)) => Handoff::keep(Keep::Mooncake(transfer_id)),
        (_, None) => Handoff::NONE,
    }
}

/// Keeps the blocks under the transfer's id; another transfer with that id takes its place.
pub(crate) fn keep(rank: &Rank, transfer_id: &str, sequence: &mut Sequence) {
    sequence.pin(transfer_id, transfer_id.to_owned(), Kept::Prefill, rank.config.mooncake_abort());
}

/// Waits for prefill, and copies what it has.
pub(crate) async fn pull(
    rank: &Arc<Rank>,
    transfer: &Transfer,
    sequence: &mut Sequence,
) -> Result<(), LoadFailed> {
    let _hanging = Hanging::new(rank);
    let (Some(id), Some(engine_id), Some(bootstrap)) =
        (&transfer.id, &transfer.engine_id, &transfer.bootstrap)
    else {
        return Err(LoadFailed);
    };
    let worker = worker(rank, engine_id, bootstrap).await.ok_or(LoadFailed)?;
    let pull = Ask::Pull {
        engine_id: engine_id.clone(),
        handshake: rank.config.handshake(),
        transfer_id: id.clone(),
    };
    let host = worker.ip().to_string();
    match timeout(rank.config.mooncake_abort(), ask(&host, worker.port(), &pull)).await {
        Ok(Ok(Reply::Blocks(content))) => {
            let from = content.len().checked_sub(sequence.wanted().len()).ok_or(LoadFailed)?;
            sequence.take_over(content.get(from..).unwrap_or_default());
            sequence.loaded();
            Ok(())
        }
        _ => Err(LoadFailed),
    }
}

/// Where the worker of an engine id is. Asked for once in the life of this engine.
async fn worker(rank: &Rank, engine_id: &str, bootstrap: &str) -> Option<SocketAddr> {
    if let Some(known) = rank.core().workers.get(engine_id) {
        return Some(*known);
    }
    let answer = Client::new(bootstrap).get("/query").await.ok()?.ok().ok()?.json();
    let ranks = answer.as_object()?.values();
    let found = ranks.into_iter().find(|known| known["engine_id"] == engine_id)?;
    let address = found["worker_addr"]["0"]["0"].as_str()?.trim_start_matches("tcp://").parse().ok()?;
    rank.core().workers.insert(engine_id.to_owned(), address);
    Some(address)
}
