//! NIXL, prefill writes: decode registers its blocks with prefill, which finds the registration by the request's id
//! without its random end (engine contract §4.3). Both legs thus need the same `X-Request-Id`, endpoint and `n`.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::time::{Instant, sleep_until};

use super::nixl::{KvParams, Remote};
use crate::engine::handoff::{Handoff, Keep, Offer, Order, Source, truthy};
use crate::engine::lease::Kept;
use crate::engine::load::Hanging;
use crate::engine::meeting::{self, Target};
use crate::engine::rank::Rank;
use crate::engine::sequence::Sequence;
use crate::engine::side_channel::{Ask, Reply, ask};
use crate::engine::transfer::{LoadFailed, notify};

/// Digits of the random end of an id, and the dash before them.
const SUFFIX: usize = 9;

/// Follows vLLM's push scheduler: it indexes its keys without a test, and does not look at block ids.
pub(crate) fn handoff(params: &Map<String, Value>) -> Handoff {
    if !truthy(params, "do_remote_prefill") {
        return if truthy(params, "do_remote_decode") { Handoff::keep(Keep::Push) } else { Handoff::NONE };
    }
    let required = ["remote_engine_id", "remote_host", "remote_port", "tp_size", "remote_request_id"];
    if required.iter().any(|key| !params.contains_key(*key)) {
        return Handoff::stuck(Source::Die);
    }
    Handoff::fetch(Order::Push(Remote::new(params, Vec::new())))
}

/// What both legs' ids have in common.
fn join(request_id: &str) -> String {
    request_id.get(..request_id.len().saturating_sub(SUFFIX)).unwrap_or_default().to_owned()
}

/// Registers the blocks with prefill, and waits for it: for good, if it never writes.
pub(crate) async fn load(
    rank: &Arc<Rank>,
    remote: &Remote,
    request_id: &str,
    sequence: &mut Sequence,
) -> Result<(), LoadFailed> {
    if sequence.is_here() {
        sequence.loaded();
        notify(rank, remote).await;
        return Ok(());
    }
    let started = Instant::now();
    let (Some(engine_id), Some(host), Some(port)) = (&remote.engine_id, &remote.host, remote.port) else {
        return Err(LoadFailed);
    };
    let arrived = meeting::expect(rank, request_id);
    let target = Target {
        request_id: request_id.to_owned(),
        engine_id: Some(rank.place.engine_id.clone()),
        at: Some((rank.config.listen.ip().to_string(), rank.place.side_port)),
        decode_rank: 0,
        blocks: sequence.wanted().to_vec(),
    };
    let register = Ask::Register {
        engine_id: engine_id.clone(),
        handshake: rank.config.handshake(),
        join: join(request_id),
        target,
    };
    if !matches!(ask(host, port, &register).await, Ok(Reply::Noted)) {
        sleep_until(started + rank.config.handshake_timeout()).await;
        return Err(LoadFailed);
    }
    Hanging::until(rank, arrived).await?;
    sequence.loaded();
    Ok(())
}

/// Pins the blocks until decode's are known, and for no longer than the lease.
pub(crate) fn offer(rank: &Arc<Rank>, request_id: &str, sequence: &mut Sequence) -> Option<Offer> {
    let join = join(request_id);
    let blocks = sequence.pin(request_id, join.clone(), Kept::Prefill, rank.config.lease());
    meeting::write_if_met(rank, &join);
    let mut params = KvParams::new(rank, request_id, blocks, sequence);
    params.remote_blocks_expiry_time = None;
    params.transfer_mode = "push";
    Offer::new(&params, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn legs_are_joined_without_the_random_end() {
        assert_eq!(join("cmpl-x-0-1234abcd"), join("cmpl-x-0-00000000"));
        assert_ne!(join("0_cmpl-x-0-1234abcd"), join("cmpl-x-0-1234abcd"));
    }

    #[test]
    fn a_missing_key_is_fatal_and_block_ids_are_no_key() {
        let full = json!({
            "do_remote_prefill": true, "remote_engine_id": "e", "remote_request_id": "r", "remote_host": "h",
            "remote_port": 1, "tp_size": 1,
        });
        let full = full.as_object().unwrap();
        assert!(matches!(handoff(full).source, Source::Fetch(Order::Push(_))));
        for key in ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"] {
            let mut params = full.clone();
            params.remove(key);
            assert!(matches!(handoff(&params).source, Source::Die), "{key}");
        }
    }
}
