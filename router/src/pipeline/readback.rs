//! The KV cache of a conversation's last turn, from the decode instance that kept it to the prefill
//! instance of the next one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edge_router_policy::Edit;
use edge_router_policy::connectors::nixl;
use http::Method;
use serde::Deserialize;

use super::attempt::Attempt;
use super::schedule::Scheduled;
use crate::app::App;
use crate::body::spoken::{Spoken, without_token_ids};
use crate::body::turn::Turn;
use crate::fleet::InstanceSpec;
use crate::handoff::{Owner, Readback, Readbacks};
use crate::metrics::Metrics;
use crate::policy::{CheckedLeg, ClientRequest, SessionKey};

/// Says of an instance that it reads KV caches of decode instances, or keeps them to be read: the name of
/// the engine's own option. One that does not would wait for good (engine contract §4.4).
const LABEL: &str = "bidirectional_kv_xfer";

/// For an engine to tell a prompt's tokens.
const TOKENIZE: Duration = Duration::from_secs(2);

/// Asks an engine for the tokens of prompt and answer (engine contract §0.6).
pub(super) const RETURN_TOKEN_IDS: &str = "return_token_ids";

/// A request of a conversation.
#[derive(Debug, Clone)]
pub(super) struct OwnTurn {
    owner: Owner,
    turn: Arc<Turn>,
    /// Whether the client wants to see the token ids.
    wants_ids: bool,
}

impl OwnTurn {
    /// The turn that a request is, if the router is to look at it, it names its conversation, and its
    /// tokens can be known.
    pub(super) fn of(app: &App, client: &ClientRequest) -> Option<Self> {
        if !app.config.readback.enabled {
            return None;
        }
        let owner = Owner::new(&client.session_key()?, &client.headers);
        let foreign: Vec<&str> = client.session_keys.iter().filter_map(SessionKey::field).collect();
        let turn = Turn::of(&client.object, &foreign)?;
        let wants_ids = client.object.is_truthy(RETURN_TOKEN_IDS) || client.object.is_set("token_ids");
        Some(Self { owner, turn: Arc::new(turn), wants_ids })
    }
}

fn is_bidirectional(spec: &InstanceSpec) -> bool {
    spec.label(LABEL).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// What is offered to the policies. It comes back to the others unless it is used: the client may leave
/// meanwhile.
pub(super) struct Offered<'a> {
    app: &'a App,
    owner: Owner,
    readback: Option<Readback>,
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        if let Some(readback) = self.readback.take() {
            self.app.readbacks.put_back(self.owner, readback);
        }
    }
}

/// A prefill leg that was told where to read. Whether it has can't be seen if there is no good answer: decode
/// keeps what was not read until its own time is up.
#[derive(Debug)]
pub(super) struct Reading {
    metrics: Arc<Metrics>,
    done: bool,
}

impl Reading {
    /// Prefill has answered.
    pub(super) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.done {
            self.metrics.request.orphaned();
        }
    }
}

/// Lets the policies see what decode kept of the last turn, if this prefill instance can read it and the
/// prompt goes on from it.
pub(super) async fn offer<'a>(attempt: &Attempt<'a>, prefill: &Scheduled) -> Option<Offered<'a>> {
    let own = attempt.parsed.turn.as_ref().filter(|_| is_bidirectional(prefill.chosen.instance.spec()))?;
    let app = attempt.app;
    let mut offered = Offered { app, owner: own.owner, readback: Some(app.readbacks.take(own.owner)?) };
    let told = match own.turn.question() {
        None => Vec::new(),
        Some(question) => tokens(attempt, prefill, question).await?,
    };
    if offered.readback.take_if(|readback| !own.turn.goes_on_from(&readback.past, &told)).is_some() {
        // A conversation that took another way does not come back to it.
        app.metrics.request.orphaned();
        return None;
    }
    attempt.facts.set_readback(offered.readback.as_ref().map(|readback| readback.params.clone()));
    Some(offered)
}

/// The prompt's tokens, as the prefill instance tells them.
async fn tokens(attempt: &Attempt<'_>, prefill: &Scheduled, question: &str) -> Option<Vec<u32>> {
    #[derive(Deserialize)]
    struct Told {
        tokens: Vec<u32>,
    }
    let body = Bytes::copy_from_slice(question.as_bytes());
    let headers = attempt.parsed.headers.clone();
    let asked = prefill.chosen.instance.ask(Method::POST, "/tokenize", headers, body, TOKENIZE).await;
    let (status, answer) = asked.ok()?;
    status
        .is_success()
        .then(|| serde_json::from_slice::<Told>(&answer).ok())
        .flatten()
        .map(|told| told.tokens)
}

/// What the leg reads, if it uses what was offered; if not, that is kept for another.
pub(super) fn reading(
    attempt: &Attempt<'_>,
    leg: &CheckedLeg,
    offered: Option<Offered<'_>>,
) -> Option<Reading> {
    let mut offered = offered?;
    attempt.facts.set_readback(None);
    let params = leg.params().next_back()?.as_bytes();
    offered.readback.take_if(|readback| readback.params == params)?;
    let metrics = Arc::clone(&attempt.app.metrics);
    metrics.request.read_back();
    Some(Reading { metrics, done: false })
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

    /// What the leg needs so that the answer names its tokens.
    pub(super) fn edit(&self) -> Option<Edit> {
        let edit = Edit::Set { name: RETURN_TOKEN_IDS.into(), value: "true".into() };
        (!self.own.wants_ids).then_some(edit)
    }

    /// The answer, or events of it, as the client wants to see them.
    pub(super) fn shown(&self, text: Bytes) -> Bytes {
        if self.own.wants_ids { text } else { without_token_ids(text) }
    }

    /// The answer has ended.
    pub(super) fn answered(&self, spoken: &Spoken) {
        #[derive(Deserialize)]
        struct Kept {
            remote_num_tokens: usize,
        }
        let Some(params) = spoken.kv_params().and_then(|params| std::str::from_utf8(params).ok()) else {
            return;
        };
        let past = serde_json::from_str(params)
            .ok()
            .and_then(|kept: Kept| self.own.turn.past(spoken, kept.remote_num_tokens));
        match past {
            Some(past) => {
                let params = nixl::with_routable_host(params, &self.decode).into_owned();
                self.readbacks.keep(self.own.owner, params.into(), past);
            }
            // Decode keeps it until its own time is up: nobody can prove a claim to it.
            None => self.metrics.request.orphaned(),
        }
    }
}
