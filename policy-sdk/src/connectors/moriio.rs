//! MoRIIO (ROCm), READ and WRITE: prefill is told which decode instance will
//! take the KV cache, and answers with all that decode needs; vLLM calls this
//! the returnable path. In WRITE mode decode needs no answer, so that both legs
//! may also start together.
//!
//! Field names and rules follow vLLM 0.33 (`kv_connector/v1/moriio/`). Peers
//! find each other by the params; engines that know only the request id take
//! its [embedded form](Transfer::request_id).

use serde_json::{Value, json};

use super::nixl::name_a_block;
use super::params::Params;
use super::single_token::{self, Token};
use super::{DATA_PARALLEL_RANK, KV_TRANSFER_PARAMS, agreed};
use crate::{Leg, Placement, Request};

pub use super::labels::LabelError;
pub use peer::{Mode, Peer};

mod peer;

/// Why there is no MoRIIO leg.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    /// The two instances don't transfer in the same way.
    #[error(
        "prefill instance {prefill} has the label transfer_mode={prefill_mode}, \
         decode instance {decode} {decode_mode}: they can't serve one request"
    )]
    ModesDiffer {
        /// Address of the prefill instance.
        prefill: String,
        /// Its mode.
        prefill_mode: Mode,
        /// Address of the decode instance.
        decode: String,
        /// Its mode.
        decode_mode: Mode,
    },
    /// Prefill returned something else than KV transfer params.
    #[error("not the KV transfer params of MoRIIO: {0}")]
    Malformed(String),
    /// Without it decode would fail, or claim a KV cache that it never got.
    #[error("prefill's answer has no usable `{0}`")]
    Missing(&'static str),
    /// Prefill speaks of another request.
    #[error("prefill's answer is about the transfer `{answered}`, not `{expected}`")]
    OtherTransfer {
        /// The id in the answer.
        answered: String,
        /// The id that prefill was given.
        expected: String,
    },
}

/// One attempt at handing a KV cache from one instance to another.
#[derive(Debug)]
pub struct Transfer<'a> {
    prefill: &'a Peer,
    decode: &'a Peer,
    /// The DP rank that the prefill leg is pinned to.
    prefill_rank: Option<u32>,
    /// The same of the decode leg.
    decode_rank: Option<u32>,
    /// What joins the two legs.
    key: String,
}

impl<'a> Transfer<'a> {
    /// A transfer for the attempt with this request id. In WRITE mode decode
    /// sends its blocks to one rank, so that a prefill leg which is pinned to
    /// none is pinned here if there are several: unpinned means rank 0.
    ///
    /// # Errors
    ///
    /// When one of the two reads and the other writes.
    pub fn new(
        request_id: &str,
        (from, prefill): (Placement, &'a Peer),
        (to, decode): (Placement, &'a Peer),
    ) -> Result<Self, Refused> {
        if prefill.mode != decode.mode {
            return Err(Refused::ModesDiffer {
                prefill: prefill.address.clone(),
                prefill_mode: prefill.mode,
                decode: decode.address.clone(),
                decode_mode: decode.mode,
            });
        }
        let must_pin = prefill.mode == Mode::Write && prefill.dp_size > 1;
        let pinned_here = || must_pin.then(|| agreed::rank(request_id, prefill.dp_size));
        Ok(Self {
            prefill,
            decode,
            prefill_rank: from.dp_rank.or_else(pinned_here),
            decode_rank: to.dp_rank,
            key: agreed::key(request_id, from.instance),
        })
    }

    /// The request id in the form that names both peers, for engines that look
    /// for them there. It shows inner addresses to whoever sees the id of an
    /// answer.
    pub fn request_id(&self) -> String {
        let (prefill, decode) = (self.prefill.zmq_address(), self.decode.zmq_address());
        format!("___prefill_addr_{prefill}___decode_addr_{decode}_{}", self.key)
    }

    /// The prefill leg: one token, not streamed, and the KV cache for this
    /// decode instance.
    ///
    /// The token is never the end of the text: MoRIIO keeps the KV cache only
    /// of requests that ended by their length.
    pub fn prefill_leg(&self, request: &Request<'_>) -> Leg {
        let params = json!({
            "do_remote_decode": true,
            "do_remote_prefill": false,
            "remote_engine_id": null,
            "remote_block_ids": null,
            "transfer_id": self.id(),
            "remote_host": self.decode.host,
            "remote_handshake_port": self.decode.handshake_port,
            "remote_notify_port": self.decode.notify_port,
            "remote_dp_size": self.decode.dp_size,
            "remote_tp_size": self.decode.tp_size,
        });
        let leg = single_token::leg(request, Token::NotTheEnd).set_json(KV_TRANSFER_PARAMS, params);
        match self.prefill_rank {
            Some(rank) => leg.header(DATA_PARALLEL_RANK, rank.to_string()),
            None => leg,
        }
    }

    /// The decode leg that starts together with prefill's, in WRITE mode:
    /// prefill writes into the blocks that decode sends it. In READ mode
    /// decode would read nothing and not notice, so that there is none.
    pub fn decode_leg_ahead(&self) -> Option<Leg> {
        if self.prefill.mode == Mode::Read {
            return None;
        }
        let prefill = self.prefill;
        let mut params = json!({
            "do_remote_decode": false,
            "do_remote_prefill": true,
            "remote_engine_id": null,
            "remote_block_ids": null,
            "transfer_id": self.id(),
            "remote_host": prefill.host,
            "remote_handshake_port": prefill.handshake_port,
            "remote_notify_port": prefill.notify_port,
            "remote_dp_size": prefill.dp_size,
            "remote_tp_size": prefill.tp_size,
            "remote_dp_rank_override": self.is_one_rank(self.prefill_rank),
        });
        if let Some(rank) = self.prefill_rank {
            params["remote_dp_rank"] = rank.into();
        }
        Some(Leg::new().set_json(KV_TRANSFER_PARAMS, params))
    }

    /// The decode leg after prefill: the client's body and what prefill
    /// returned, with what older engines leave out.
    ///
    /// # Errors
    ///
    /// When decode could not take the KV cache with it, or would take nothing
    /// and not notice.
    pub fn decode_leg(&self, kv_params: &str) -> Result<Leg, Refused> {
        let answer = Params::parse(kv_params).map_err(|error| Refused::Malformed(error.to_string()))?;
        self.check(&answer)?;
        let prefill = self.prefill;
        let tp_size = answer.get("tp_size").map_or_else(|| prefill.tp_size.to_string(), str::to_owned);
        let mut added = vec![
            ("transfer_id", json!(self.id()).to_string()),
            ("remote_host", json!(prefill.host).to_string()),
            ("remote_handshake_port", prefill.handshake_port.to_string()),
            ("remote_notify_port", prefill.notify_port.to_string()),
            ("remote_dp_size", prefill.dp_size.to_string()),
            ("remote_tp_size", tp_size),
        ];
        added.extend(self.prefill_rank.map(|rank| ("remote_dp_rank", rank.to_string())));
        added.retain(|(name, _)| answer.get(name).is_none());
        let nulls = ["remote_engine_id", "remote_block_ids"].into_iter().filter(|name| !answer.has(name));
        added.extend(nulls.map(|name| (name, "null".to_owned())));
        if prefill.mode == Mode::Write {
            let rank = answer.get("remote_dp_rank").and_then(|rank| rank.parse().ok()).or(self.prefill_rank);
            added.push(("remote_dp_rank_override", self.is_one_rank(rank).to_string()));
        }
        Ok(Leg::new().set(KV_TRANSFER_PARAMS, answer.with(&added)))
    }

    fn id(&self) -> String {
        format!("tx-{}", self.key)
    }

    fn check(&self, answer: &Params<'_>) -> Result<(), Refused> {
        if answer.get("do_remote_prefill") != Some("true") {
            return Err(Refused::Missing("do_remote_prefill"));
        }
        if let Some(answered) = answer.get("transfer_id").map(str::to_owned) {
            let expected = self.id();
            if answer.text("transfer_id").as_ref() != Some(&expected) {
                return Err(Refused::OtherTransfer { answered, expected });
            }
        }
        if self.prefill.mode == Mode::Read {
            let groups = answer.get("remote_block_ids").and_then(|ids| serde_json::from_str(ids).ok());
            if !groups.is_some_and(|groups: Vec<Value>| name_a_block(&groups)) {
                return Err(Refused::Missing("remote_block_ids"));
            }
            answer.get("remote_engine_id").ok_or(Refused::Missing("remote_engine_id"))?;
        }
        Ok(())
    }

    /// Whether both legs run on the same DP rank for certain. A decode engine
    /// with `remote_dp_rank_override` announces its blocks only if its own rank
    /// is prefill's, so on another one prefill would never write.
    fn is_one_rank(&self, prefill_rank: Option<u32>) -> bool {
        let are_pinned = self.decode_rank.is_some() && prefill_rank == self.decode_rank;
        are_pinned && self.prefill.dp_size == self.decode.dp_size
    }
}

#[cfg(test)]
mod tests;
