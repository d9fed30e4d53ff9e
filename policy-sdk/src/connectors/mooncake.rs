//! Mooncake: decode asks prefill's bootstrap server for its peer, and both legs
//! name one transfer. Prefill returns nothing.
//!
//! Field names and rules follow vLLM 0.33 (`kv_connector/v1/mooncake/`). Its
//! scheduler ends the engine where a leg is sent to the other role, so that a
//! prefill leg is made for a [`Producer`] only, and a decode leg for a
//! [`Consumer`].

use serde_json::json;

use super::labels::{self, LabelError};
use super::single_token::{self, Token};
use super::{DATA_PARALLEL_RANK, KV_TRANSFER_PARAMS, agreed};
use crate::{Instance, Leg, Placement, Request, Role};

const BOOTSTRAP: &str = "bootstrap_address";
const REMEDY: &str = "give --mooncake-bootstrap INSTANCE=SERVER, or the label `bootstrap_address`, and the \
                      server is asked for the rest";

/// Why an instance takes no part in a transfer.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unfit {
    /// Something is not known of it.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// An engine of the other role would die of the leg.
    #[error("instance {instance} does not serve {phase}")]
    OtherRole {
        /// Address of the instance.
        instance: String,
        /// What the leg is for.
        phase: &'static str,
    },
    /// The scheduling policy has chosen a rank that is not there.
    #[error("instance {instance} has no data-parallel rank {rank}")]
    NoSuchRank {
        /// Address of the instance.
        instance: String,
        /// What was chosen.
        rank: u32,
    },
}

/// An engine that computes KV caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Address of its HTTP server, which errors name it by.
    address: String,
    /// `host:port`.
    bootstrap: String,
    /// One for each data-parallel rank.
    engine_ids: Vec<String>,
}

impl Producer {
    /// Reads the labels `bootstrap_address` (`host:port`), `engine_id`, and of
    /// more ranks `engine_id_dp1` and so on.
    ///
    /// # Errors
    ///
    /// When the instance does not serve prefill, or a label is missing or can't
    /// be read.
    pub fn of(instance: &Instance) -> Result<Self, Unfit> {
        if !matches!(instance.role, Role::Prefill | Role::Both) {
            return Err(Unfit::OtherRole { instance: instance.address.clone(), phase: "prefill" });
        }
        let text = labels::required(instance, BOOTSTRAP, REMEDY)?;
        let bootstrap = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        if labels::host_and_port(bootstrap).is_none() {
            return Err(labels::malformed(instance, BOOTSTRAP, text, "host:port").into());
        }
        Ok(Self {
            address: instance.address.clone(),
            bootstrap: bootstrap.to_owned(),
            engine_ids: labels::engine_ids(instance, REMEDY)?,
        })
    }
}

/// An engine that fetches KV caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer(());

impl Consumer {
    /// # Errors
    ///
    /// When the instance does not serve decode.
    pub fn of(instance: &Instance) -> Result<Self, Unfit> {
        match instance.role {
            Role::Decode | Role::Both => Ok(Self(())),
            Role::Prefill | Role::Encode | Role::Render => {
                Err(Unfit::OtherRole { instance: instance.address.clone(), phase: "decode" })
            }
        }
    }
}

/// One attempt at handing a KV cache over.
#[derive(Debug)]
pub struct Transfer<'a> {
    prefill: &'a Producer,
    rank: u32,
    engine_id: &'a str,
    key: String,
}

impl<'a> Transfer<'a> {
    /// A transfer for the attempt with this request id. If the prefill leg is
    /// not pinned to a rank, one is chosen: decode must name the engine.
    ///
    /// # Errors
    ///
    /// When the instance has no such rank.
    pub fn new(request_id: &str, placement: Placement, prefill: &'a Producer) -> Result<Self, Unfit> {
        let ranks = u32::try_from(prefill.engine_ids.len()).unwrap_or(u32::MAX);
        let rank = placement.dp_rank.unwrap_or_else(|| agreed::rank(request_id, ranks));
        let known = usize::try_from(rank).ok().and_then(|rank| prefill.engine_ids.get(rank));
        let no_such_rank = || Unfit::NoSuchRank { instance: prefill.address.clone(), rank };
        let engine_id = known.ok_or_else(no_such_rank)?;
        Ok(Self { prefill, rank, engine_id, key: agreed::key(request_id, placement.instance) })
    }

    /// The prefill leg: one token, not streamed, on one rank for certain.
    ///
    /// The token is never the end of the text: Mooncake keeps the KV cache only
    /// of requests that ended by their length.
    pub fn prefill_leg(&self, request: &Request<'_>) -> Leg {
        let params = json!({
            "do_remote_decode": true,
            "do_remote_prefill": false,
            "transfer_id": self.id(),
        });
        single_token::leg(request, Token::NotTheEnd)
            // Long ids would hide from the policy how prefill ended.
            .remove("return_token_ids")
            .set_json(KV_TRANSFER_PARAMS, params)
            .header(DATA_PARALLEL_RANK, self.rank.to_string())
    }

    /// The decode leg: the client's body, and where the KV cache is. Only for a
    /// prefill leg that runs, or has [ended by its
    /// length](super::prefill_answer::ended_by_length): decode waits 480 s for
    /// any other.
    pub fn decode_leg(&self, _: &Consumer) -> Leg {
        let params = json!({
            "do_remote_decode": false,
            "do_remote_prefill": true,
            "remote_bootstrap_addr": format!("http://{}", self.prefill.bootstrap),
            "remote_engine_id": self.engine_id,
            "transfer_id": self.id(),
        });
        Leg::new().set_json(KV_TRANSFER_PARAMS, params)
    }

    fn id(&self) -> String {
        format!("xfer-{}", self.key)
    }
}

#[cfg(test)]
mod tests;
