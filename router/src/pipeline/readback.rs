//! The KV cache of a conversation's last turn, from the decode instance that kept it to the prefill
//! instance of the next one.

use std::sync::Arc;

use edge_router_policy::connectors::nixl;

use super::attempt::Attempt;
use super::schedule::Scheduled;
use crate::app::App;
use crate::body::spoken::Spoken;
use crate::body::turn::Turn;
use crate::config::KvReadback;
use crate::fleet::InstanceSpec;
use crate::handoff::{Owner, Readback, Readbacks};
use crate::metrics::Metrics;
use crate::policy::{CheckedLeg, ClientRequest, SessionKey};

/// Says of an instance that it reads KV caches of decode instances, or keeps them to be read: the name of
/// the engine's own option. One that does not would wait for good (engine contract §4.4).
const LABEL: &str = "bidirectional_kv_xfer";

/// A request of a conversation.
#[derive(Debug, Clone)]
pub(super) struct OwnTurn {
    owner: Owner,
    turn: Arc<Turn>,
}

impl OwnTurn {
    /// The turn that a request is, if the router is to look at it, it names its conversation, and its
    /// prompt can be compared.
    pub(super) fn of(app: &App, client: &ClientRequest) -> Option<Self> {
        let mode = app.config.readback.mode?;
        let owner = Owner::new(&client.session_key()?, &client.headers);
        let names: Vec<&str> = client.session_keys.iter().filter_map(SessionKey::field).collect();
        let turn = Turn::of(&client.object, mode == KvReadback::Messages, &names)?;
        Some(Self { owner, turn: Arc::new(turn) })
    }
}

pub(super) fn is_bidirectional(spec: &InstanceSpec) -> bool {
    spec.label(LABEL).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Lets the policies see what decode kept of the last turn, if this prefill instance can read it.
pub(super) fn offer(attempt: &Attempt<'_>, prefill: &Scheduled) -> Option<Readback> {
    let own = attempt.parsed.turn.as_ref().filter(|_| is_bidirectional(prefill.chosen.instance.spec()))?;
    let readback = attempt.app.readbacks.take(own.owner, &own.turn)?;
    attempt.facts.set_readback(Some(readback.params.clone()));
    Some(readback)
}

/// Whether the leg uses what was offered; if not, it is kept for another.
pub(super) fn is_used(attempt: &Attempt<'_>, leg: &CheckedLeg, offered: Option<Readback>) -> bool {
    attempt.facts.set_readback(None);
    let Some(readback) = offered else { return false };
    if leg.params().next_back().is_some_and(|params| params.as_bytes() == readback.params) {
        attempt.app.metrics.request.read_back();
        return true;
    }
    if let Some(own) = &attempt.parsed.turn {
        attempt.app.readbacks.put_back(own.owner, readback);
    }
    false
}

/// Listens to decode's answer, and remembers where it keeps its KV cache.
#[derive(Debug)]
pub(super) struct Keeper {
    own: OwnTurn,
    /// Address of the instance.
    decode: String,
    readbacks: Arc<Readbacks>,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// One for the answer of `decode`, if that keeps anything.
    pub(super) fn of(attempt: &Attempt<'_>, decode: &InstanceSpec) -> Option<Self> {
        let own = attempt.parsed.turn.clone().filter(|_| is_bidirectional(decode))?;
        let (readbacks, metrics) = (Arc::clone(&attempt.app.readbacks), Arc::clone(&attempt.app.metrics));
        Some(Self { own, decode: decode.address.clone(), readbacks, metrics })
    }

    /// The answer has ended.
    pub(super) fn answered(&self, spoken: &Spoken) {
        let Some(params) = spoken.kv_params().and_then(|params| std::str::from_utf8(params).ok()) else {
            return;
        };
        match self.own.turn.past(spoken) {
            Some(past) => {
                let params = nixl::with_routable_host(params, &self.decode).into_owned();
                self.readbacks.keep(self.own.owner, params.into(), past);
            }
            // Decode keeps it until its own time is up: nobody can prove a claim to it.
            None => self.metrics.request.orphaned(),
        }
    }
}
