//! The side channels between engines: one line of JSON asks, one line answers.
//!
//! They stand in for the handshakes, reads and writes of each other's memory, notifications and heartbeats of the real
//! connectors. What comes in at the wrong door, or from another connector, gets no answer.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::blocks::BlockId;
use super::connector::Connector;
use super::meeting::{self, Target};
use super::rank::Rank;

/// What a peer may ask.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Shake hands with the engine of this id and read blocks out of its memory; it is not told which request.
    Read { engine_id: String, handshake: String, blocks: Vec<BlockId> },
    /// The blocks of this request were read, or are not wanted any more.
    Notify { request_id: String },
    /// This request still waits to be read.
    Heartbeat { request_id: String },
    /// What time the engine has.
    Clock,
    /// NIXL push: write what is computed for the other leg of `join` to these blocks.
    Register { engine_id: String, handshake: String, join: String, target: Target },
    /// NIXL push and MoRIIO: the blocks' content, and that it is all.
    Write { engine_id: Option<String>, request_id: String, blocks: Vec<(BlockId, Vec<u32>)> },
    /// MoRIIO WRITE: where decode wants the transfer.
    RemoteBlocks { transfer_id: String, block_notify_list: Vec<BlockId>, decode_rank: u16 },
    /// MoRIIO WRITE: prefill has given the transfer up.
    WriteFailed { transfer_id: String },
    /// MoRIIO READ: the transfer was read.
    Release { transfer_id: String },
    /// Mooncake: the content of a transfer, as soon as it is there.
    Pull { engine_id: String, handshake: String, transfer_id: String },
}

/// What the engine answers.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// What the blocks hold now.
    Blocks(Vec<Vec<u32>>),
    /// Seconds since some moment that nobody else knows.
    Clock(f64),
    /// Another engine id, or another build or connector: no handshake.
    Mismatch,
    /// No such block.
    OutOfRange,
    /// Not within the time that prefill gives decode.
    NotReady,
    /// Taken note.
    Noted,
}

/// Which of an engine's ports it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// The only one.
    All,
    /// MoRIIO's for handshakes, and what the network card does.
    Handshake,
    /// MoRIIO's for messages.
    Notify,
}

/// Answers peers until dropped.
pub(crate) async fn serve(listener: TcpListener, rank: Arc<Rank>, door: Door) {
    let mut peers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    let rank = Arc::clone(&rank);
                    peers.spawn(async move { drop(serve_one(stream, &rank, door).await) });
                }
            }
            Some(_) = peers.join_next() => {}
        }
    }
}

async fn serve_one(stream: TcpStream, rank: &Arc<Rank>, door: Door) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let ask = serde_json::from_str(&line)?;
    if !ask_belongs(&ask, door, &rank.config.connector) {
        return Ok(());
    }
    let reply = match ask {
        Ask::Pull { engine_id, handshake, transfer_id } if is_me(rank, &engine_id, &handshake) => {
            // Decode may be gone before there is anything to tell it.
            tokio::select! {
                reply = pull(rank, &transfer_id) => reply,
                _ = stream.read_u8() => return Ok(()),
            }
        }
        ask => {
            if matches!(ask, Ask::Read { .. }) {
                sleep(rank.faults.read_delay()).await;
            }
            answer(rank, ask)
        }
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    stream.flush().await
}

fn ask_belongs(ask: &Ask, door: Door, connector: &Connector) -> bool {
    let nixl = matches!(connector, Connector::NixlPull | Connector::NixlPush);
    match ask {
        // Another connector's handshake is answered, with a refusal.
        Ask::Read { .. } | Ask::Register { .. } => door != Door::Notify,
        Ask::Notify { .. } | Ask::Heartbeat { .. } | Ask::Clock => nixl,
        Ask::Write { .. } => door != Door::Handshake,
        Ask::RemoteBlocks { .. } | Ask::WriteFailed { .. } | Ask::Release { .. } => door == Door::Notify,
        Ask::Pull { .. } => matches!(connector, Connector::Mooncake),
    }
}

fn answer(rank: &Arc<Rank>, ask: Ask) -> Reply {
    match ask {
        Ask::Read { engine_id, handshake, blocks } if is_me(rank, &engine_id, &handshake) => {
            read(rank, &blocks)
        }
        Ask::Register { engine_id, handshake, join, target } if is_me(rank, &engine_id, &handshake) => {
            let deadline = Instant::now() + rank.config.push_registration();
            meeting::announce(rank, &join, target, Some(deadline));
            Reply::Noted
        }
        Ask::Read { .. } | Ask::Register { .. } | Ask::Pull { .. } => Reply::Mismatch,
        Ask::Clock => Reply::Clock(rank.clock(Instant::now())),
        Ask::Notify { request_id } | Ask::Release { transfer_id: request_id } => notify(rank, &request_id),
        Ask::Heartbeat { request_id } => heartbeat(rank, &request_id),
        Ask::Write { engine_id, request_id, blocks } => {
            if engine_id.is_some_and(|id| id != rank.place.engine_id) {
                return Reply::Mismatch;
            }
            meeting::written(rank, &request_id, &blocks);
            Reply::Noted
        }
        Ask::RemoteBlocks { transfer_id, block_notify_list: blocks, decode_rank } => {
            // Prefill that is read from throws such messages away.
            if matches!(rank.config.connector, Connector::MoriioWrite) {
                let request_id = transfer_id.clone();
                let target = Target { request_id, engine_id: None, at: None, decode_rank, blocks };
                meeting::announce(rank, &transfer_id, target, None);
            }
            Reply::Noted
        }
        Ask::WriteFailed { transfer_id } => {
            meeting::failed(rank, &transfer_id);
            Reply::Noted
        }
    }
}

/// Whether a peer that shakes hands means this engine, this life of it, and speaks as it does.
fn is_me(rank: &Rank, engine_id: &str, handshake: &str) -> bool {
    engine_id == rank.place.engine_id && handshake == rank.config.handshake()
}

fn read(rank: &Rank, blocks: &[BlockId]) -> Reply {
    let core = rank.core();
    match blocks.iter().map(|id| core.pool.read(*id).map(<[u32]>::to_vec)).collect() {
        Some(content) => Reply::Blocks(content),
        None => Reply::OutOfRange,
    }
}

/// Waits for the transfer, and hands it over.
async fn pull(rank: &Arc<Rank>, transfer_id: &str) -> Reply {
    let ready = rank.wait_for(|core| core.leases.get(transfer_id).map(|lease| lease.blocks.clone()));
    let Ok(blocks) = timeout(rank.config.mooncake_abort(), ready).await else { return Reply::NotReady };
    sleep(rank.faults.read_delay()).await;
    let reply = read(rank, &blocks);
    notify(rank, transfer_id);
    reply
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
/// If nobody listens there, or the peer goes away before it has answered, or does not know what is meant.
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
