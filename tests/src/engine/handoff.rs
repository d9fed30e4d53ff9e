//! What a request's `kv_transfer_params` make an engine do: where the prompt's KV cache comes from, and what becomes of
//! its blocks at the end.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::config::Config;
use super::connector::bidirectional::{self, Readback};
use super::connector::nixl::{self, Remote};
use super::connector::{Connector, SharedStore, content, mooncake, moriio, push};
use super::rank::Rank;
use super::sequence::Sequence;
use super::transfer::{LoadFailed, notify};

/// A request's part in a handoff.
#[derive(Clone, Debug)]
pub(crate) struct Handoff {
    pub(crate) source: Source,
    pub(crate) keep: Keep,
}

/// Where the prompt's KV cache comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// It is computed here.
    Here,
    /// What the store holds of it comes from there, within the engine's step; the rest is computed here.
    Store(SharedStore),
    /// It comes from elsewhere.
    Fetch(Order),
    /// An assertion of the scheduler fails, and takes the engine with it.
    Die,
    /// A load that nobody serves: parked for good.
    Park,
}

/// How a KV cache comes from elsewhere.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Pull(Remote),
    Readback(Readback),
    Push(Remote),
    MoriioRead(moriio::Transfer),
    MoriioWrite(moriio::Transfer),
    Mooncake(mooncake::Transfer),
}

/// What becomes of the blocks at the end.
#[derive(Clone, Debug)]
pub(crate) enum Keep {
    /// They are freed.
    Nothing,
    Pull,
    Push,
    Readback,
    MoriioRead(moriio::Transfer),
    MoriioWrite(moriio::Transfer),
    /// Under this transfer id.
    Mooncake(String),
    Store(SharedStore),
}

/// `kv_transfer_params` of an answer, as the engine writes them.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) params: Box<RawValue>,
    /// Whether they are said in streams too, as only a readback's are.
    pub(crate) in_streams: bool,
}

impl Handoff {
    /// No part in any.
    pub(crate) const NONE: Self = Self { source: Source::Here, keep: Keep::Nothing };

    /// Follows the scheduler's side of the engine's connector; `id` is the answer's, without the suffix that each
    /// sequence gets.
    pub(crate) fn of(config: &Config, id: &str, params: Option<&Value>) -> Self {
        if let Connector::Content(store) = &config.connector {
            return Self { source: Source::Store(store.clone()), keep: Keep::Store(store.clone()) };
        }
        let Some(params) = params.and_then(Value::as_object).filter(|params| !params.is_empty()) else {
            return Self::NONE;
        };
        match &config.connector {
            Connector::None | Connector::Content(_) => Self::NONE,
            Connector::NixlPull if config.bidirectional => bidirectional::handoff(params),
            Connector::NixlPull => nixl::handoff(params),
            Connector::NixlPush => push::handoff(params),
            Connector::MoriioRead => moriio::handoff(moriio::Mode::Read, params, id),
            Connector::MoriioWrite => moriio::handoff(moriio::Mode::Write, params, id),
            Connector::Mooncake => mooncake::handoff(config.role, params),
        }
    }

    /// One that gets its KV cache from elsewhere and keeps nothing.
    pub(crate) fn fetch(order: Order) -> Self {
        Self { source: Source::Fetch(order), keep: Keep::Nothing }
    }

    /// One that computes and keeps.
    pub(crate) fn keep(keep: Keep) -> Self {
        Self { source: Source::Here, keep }
    }

    /// One that goes no further than this.
    pub(crate) fn stuck(source: Source) -> Self {
        Self { source, keep: Keep::Nothing }
    }
}

impl Order {
    /// Gets the prompt's KV cache into the blocks of `sequence`, which the engine calls `request_id`.
    pub(crate) async fn load(
        &self,
        rank: &Arc<Rank>,
        request_id: &str,
        sequence: &mut Sequence,
    ) -> Result<(), LoadFailed> {
        match self {
            Self::Pull(remote) => nixl::pull(rank, remote, sequence).await,
            Self::Readback(readback) => bidirectional::pull(rank, readback, sequence).await,
            Self::Push(remote) => push::load(rank, remote, request_id, sequence).await,
            Self::MoriioRead(transfer) => moriio::read(rank, transfer, sequence).await,
            Self::MoriioWrite(transfer) => moriio::await_write(rank, transfer, sequence).await,
            Self::Mooncake(transfer) => mooncake::pull(rank, transfer, sequence).await,
        }
    }

    /// NIXL: the engine whose lease lasts while this request waits, and that is told if it is given up.
    pub(crate) fn remote(&self) -> Option<&Remote> {
        match self {
            Self::Pull(remote) | Self::Push(remote) => Some(remote),
            _ => None,
        }
    }

    /// What prefill itself found in its cache, if it has said so.
    pub(crate) fn prefill_cached_tokens(&self) -> Option<usize> {
        match self {
            Self::Pull(remote) | Self::Push(remote) => remote.prefill_cached_tokens,
            Self::MoriioRead(transfer) | Self::MoriioWrite(transfer) => transfer.prefill_cached_tokens,
            Self::Readback(_) | Self::Mooncake(_) => None,
        }
    }
}

impl Keep {
    /// Leaves the blocks to whoever comes for them, if the connector accepts the way that the sequence ended.
    pub(crate) fn offer(
        &self,
        rank: &Arc<Rank>,
        request_id: &str,
        reason: &str,
        sequence: &mut Sequence,
    ) -> Option<Offer> {
        match (self, reason) {
            (Self::Pull, "length" | "stop") => nixl::offer(rank, request_id, sequence),
            (Self::Push, "length" | "stop") => push::offer(rank, request_id, sequence),
            (Self::Readback, "length" | "stop") => bidirectional::offer(rank, request_id, sequence),
            (Self::MoriioRead(transfer), "length") => moriio::offer_to_read(rank, transfer, sequence),
            (Self::MoriioWrite(transfer), "length") => moriio::offer_to_write(rank, transfer, sequence),
            (Self::Mooncake(transfer_id), "length") => {
                mooncake::keep(rank, transfer_id, sequence);
                None
            }
            (Self::Store(store), _) => {
                content::save(store, sequence);
                None
            }
            (Self::MoriioWrite(transfer), _) => {
                rank.core().meetings.end(&transfer.id);
                None
            }
            _ => None,
        }
    }
}

/// MoRIIO's prefill remembers a transfer that was aborted, too, as ended (engine contract §3.4). Dropped before the end
/// of the request, this is an abort.
pub(crate) struct Unfinished<'a> {
    rank: &'a Rank,
    transfer_id: Option<&'a str>,
}

impl<'a> Unfinished<'a> {
    pub(crate) fn new(rank: &'a Rank, keep: &'a Keep) -> Self {
        let transfer_id = match keep {
            Keep::MoriioWrite(transfer) => Some(transfer.id.as_str()),
            _ => None,
        };
        Self { rank, transfer_id }
    }

    /// The request has ended by itself.
    pub(crate) fn finished(mut self) {
        self.transfer_id = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(transfer_id) = self.transfer_id {
            self.rank.core().meetings.end(transfer_id);
        }
    }
}

impl Offer {
    pub(crate) fn new(params: &impl Serialize, in_streams: bool) -> Option<Self> {
        Some(Self { params: to_raw_value(params).ok()?, in_streams })
    }
}

/// Whether a key is there and true.
pub(crate) fn truthy(params: &Map<String, Value>, key: &str) -> bool {
    params.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// A port, which may be a number or a text.
pub(crate) fn port(value: Option<&Value>) -> Option<u16> {
    match value? {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64().and_then(|port| u16::try_from(port).ok()),
    }
}

/// An engine that refuses a request lets go of the prefill that the request names (NIXL, engine contract §0.7).
pub(crate) async fn let_go(rank: &Rank, id: &str, params: Option<&Value>) {
    // With push, vLLM 0.32 tells nobody.
    if let Source::Fetch(Order::Pull(remote)) = Handoff::of(&rank.config, id, params).source {
        notify(rank, &remote).await;
    }
}
