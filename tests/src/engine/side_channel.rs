//! The side channel between engines, in place of NIXL: one line of JSON asks, one line answers.
//!
//! It stands in for three things of the real connector: the handshake and the read of a peer's memory, the
//! notification that a read is done, and the heartbeats that keep a lease alive meanwhile.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::blocks::BlockId;
use super::rank::Rank;

/// What a peer may ask.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Shake hands with the engine of this id and read blocks out of its memory; it is not told which request.
    Read { engine_id: String, compatibility: String, blocks: Vec<BlockId> },
    /// The blocks of this request were read, or are not wanted any more.
    Notify { request_id: String },
    /// This request still waits to be read.
    Heartbeat { request_id: String },
}

/// What the engine answers.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// What the blocks hold now.
    Blocks(Vec<Vec<u32>>),
    /// Another engine id, or another build: no handshake.
    Mismatch,
    /// No such block.
    OutOfRange,
    /// Taken note.
    Noted,
}

/// Answers peers until dropped.
pub(crate) async fn serve(listener: TcpListener, rank: Arc<Rank>) {
    let mut peers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    let rank = Arc::clone(&rank);
                    peers.spawn(async move { drop(answer(stream, &rank).await) });
                }
            }
            Some(_) = peers.join_next() => {}
        }
    }
}

async fn answer(stream: TcpStream, rank: &Rank) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let reply = match serde_json::from_str(&line)? {
        Ask::Read { engine_id, compatibility, blocks } => {
            sleep(rank.faults.read_delay()).await;
            read(rank, &engine_id, &compatibility, &blocks)
        }
        Ask::Notify { request_id } => notify(rank, &request_id),
        Ask::Heartbeat { request_id } => heartbeat(rank, &request_id),
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    stream.flush().await
}

fn read(rank: &Rank, engine_id: &str, compatibility: &str, blocks: &[BlockId]) -> Reply {
    if engine_id != rank.engine_id || compatibility != rank.config.compatibility {
        return Reply::Mismatch;
    }
    let core = rank.core();
    match blocks.iter().map(|id| core.pool.read(*id).map(<[u32]>::to_vec)).collect() {
        Some(content) => Reply::Blocks(content),
        None => Reply::OutOfRange,
    }
}

fn notify(rank: &Rank, request_id: &str) -> Reply {
    if rank.faults.loses_notification() {
        return Reply::Noted;
    }
    let mut core = rank.core();
    match core.leases.complete(request_id) {
        Some(blocks) => {
            core.counters.completed += 1;
            core.pool.release(&blocks);
        }
        None => core.counters.notifications_after_expiry += 1,
    }
    drop(core);
    rank.notify_waiting();
    Reply::Noted
}

fn heartbeat(rank: &Rank, request_id: &str) -> Reply {
    let mut core = rank.core();
    core.counters.heartbeats += 1;
    core.leases.extend(request_id, Instant::now() + rank.config.lease_extension());
    Reply::Noted
}

/// Asks the engine whose side channel is at `host:port`.
///
/// # Errors
/// If nobody listens there, or the peer goes away before it has answered.
pub(crate) async fn ask(host: &str, port: u16, ask: &Ask) -> io::Result<Reply> {
    let mut stream = BufReader::new(TcpStream::connect((host, port)).await?);
    let mut line = serde_json::to_vec(ask)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    stream.flush().await?;
    let mut answer = String::new();
    stream.read_line(&mut answer).await?;
    Ok(serde_json::from_str(&answer)?)
}
