//! Decode's side of a handoff: fetch a peer's blocks, keep its lease alive meanwhile, tell it when done.

use std::future::pending;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::connector::nixl::Remote;
use super::rank::Rank;
use super::side_channel::{Ask, Reply, ask};

/// The KV cache could not be fetched.
#[derive(Debug)]
pub(crate) struct LoadFailed;

/// Reads `blocks`, a part of the remote's blocks, and returns what they hold.
///
/// A peer never met before gets the whole handshake timeout, as the real connector keeps trying; one that is known
/// to this engine fails at once.
pub(crate) async fn fetch(rank: &Rank, remote: &Remote, blocks: &[u32]) -> Result<Vec<Vec<u32>>, LoadFailed> {
    let started = Instant::now();
    let (Some(engine_id), Some(host), Some(port)) = (&remote.engine_id, &remote.host, remote.port) else {
        return Err(LoadFailed);
    };
    let read = Ask::Read {
        engine_id: engine_id.clone(),
        handshake: rank.config.handshake(),
        blocks: blocks.to_vec(),
    };
    let peer = (host.clone(), port, engine_id.clone());
    match ask(host, port, &read).await {
        Ok(Reply::Blocks(content)) => {
            rank.core().known_peers.insert(peer);
            Ok(content)
        }
        Ok(Reply::OutOfRange) => Err(LoadFailed),
        Ok(_) | Err(_) => {
            if !rank.core().known_peers.contains(&peer) {
                sleep_until(started + rank.config.handshake_timeout()).await;
            }
            Err(LoadFailed)
        }
    }
}

/// Tells prefill that its blocks are not needed any more, unless this engine is past telling anybody anything. A
/// lost notification costs the lease, nothing else.
pub(crate) async fn notify(rank: &Rank, remote: &Remote) {
    if rank.is_silent() {
        return;
    }
    if let (Some(host), Some(port), Some(request_id)) = (&remote.host, remote.port, &remote.request_id) {
        let notify = Ask::Notify { request_id: request_id.clone() };
        drop(ask(host, port, &notify).await);
    }
}

/// Runs `work` while heartbeats keep the remote's lease alive.
pub(crate) async fn with_heartbeats<T>(rank: &Rank, remote: &Remote, work: impl Future<Output = T>) -> T {
    tokio::select! {
        result = work => result,
        () = beat(rank, remote) => unreachable!("heartbeats never end"),
    }
}

async fn beat(rank: &Rank, remote: &Remote) {
    let (true, Some(host), Some(port), Some(request_id)) =
        (remote.heartbeats, &remote.host, remote.port, &remote.request_id)
    else {
        return pending().await;
    };
    let mut ticks = interval(rank.config.heartbeat());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once: what decode has just admitted, prefill gave a full lease a moment ago.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let heartbeat = Ask::Heartbeat { request_id: request_id.clone() };
        drop(ask(host, port, &heartbeat).await);
    }
}

/// A handoff that is not yet being read: giving it up frees it at prefill.
pub(crate) struct Unread {
    rank: Arc<Rank>,
    remote: Option<Remote>,
}

impl Unread {
    pub(crate) fn new(rank: &Arc<Rank>, remote: &Remote) -> Self {
        Self { rank: Arc::clone(rank), remote: Some(remote.clone()) }
    }

    /// The read begins.
    pub(crate) fn disarm(mut self) {
        self.remote = None;
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        // At the end of a test there may be no runtime any more.
        if let (Some(remote), Ok(runtime)) = (self.remote.take(), Handle::try_current()) {
            let rank = Arc::clone(&self.rank);
            runtime.spawn(async move { notify(&rank, &remote).await });
        }
    }
}
