//! One try at serving a request, and how many more there may be.

use std::sync::Arc;

use edge_router_policy::connectors::EC_TRANSFER_PARAMS;
use edge_router_policy::{Edit, InstanceId, Pair, Phase};

use super::account::Account;
use super::encode::Encoded;
use super::parse::Parsed;
use super::readback::{Keeper, RETURN_TOKEN_IDS};
use super::schedule::Scheduled;
use crate::app::App;
use crate::body::rename::Rename;
use crate::body::splice::{Segments, splice};
use crate::body::sse::PRIVATE_FIELDS;
use crate::policy::{CheckedLeg, RequestFacts};
use crate::upstream::LegRequest;

/// What one try knows.
pub(super) struct Attempt<'a> {
    pub(super) app: &'a App,
    pub(super) parsed: &'a Parsed,
    pub(super) account: &'a mut Account,
    /// With an id of its own: engines remember ids for longer than a try lasts.
    pub(super) facts: Arc<RequestFacts>,
    pub(super) pair: Pair,
    /// The client's request with its media encoded, if they are.
    pub(super) encoded: Option<Encoded>,
    /// Chosen before its media were encoded, for encoders that must be told who will come.
    pub(super) prefill_ahead: Option<Scheduled>,
    /// Chosen before prefill, or before the media were encoded, for connectors that must tell prefill who will come.
    pub(super) decode_ahead: Option<Scheduled>,
    /// Whether prefill was told who will come: no other decode instance can use its handle.
    pub(super) paired: bool,
    /// Whether prefill was asked to keep its KV cache for decode.
    pub(super) asked_to_keep: bool,
    /// Where a policy gave the decode leg a request id that clients must not see.
    pub(super) rename: Option<Rename>,
    /// Listens to decode's answer for the conversation's next turn.
    pub(super) keeper: Option<Keeper>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(app: &'a App, parsed: &'a Parsed, account: &'a mut Account) -> Self {
        let show_blocks = app.chain.facts().prefix_blocks;
        let id = account.next_engine_id();
        let facts = Arc::new(RequestFacts::new(Arc::clone(&parsed.client), id, show_blocks));
        Self {
            app,
            parsed,
            account,
            facts,
            pair: Pair::default(),
            encoded: None,
            prefill_ahead: None,
            decode_ahead: None,
            paired: false,
            asked_to_keep: false,
            rename: None,
            keeper: None,
        }
    }

    /// Decode computes the prompt itself.
    pub(super) fn go_without_prefill(&mut self) {
        self.pair.prefill = None;
        self.account.without_prefill();
    }

    /// Whether a leg says where encodings are, which can be fetched once.
    pub(super) fn hands_encodings(&self) -> bool {
        self.encoded.as_ref().is_some_and(|encoded| encoded.params.is_some())
    }

    /// Whether encodings are with the instance that was chosen for them.
    pub(super) fn encodings_are_pushed(&self) -> bool {
        self.encoded.as_ref().is_some_and(|encoded| encoded.pushed)
    }

    /// The encodings may have been fetched: who computes the prompt now is sent the media themselves.
    pub(super) fn encodings_are_spent(&mut self) {
        self.encoded = None;
    }

    /// Whether decode is asked for the ids of the prompt's tokens.
    pub(super) fn asks_for_token_ids(&self) -> bool {
        self.keeper.is_some() || self.parsed.client.object.is_truthy(RETURN_TOKEN_IDS)
    }

    /// The client's request as `leg` changes it, for the instance in `scheduled`.
    pub(super) fn leg_request(&self, leg: &CheckedLeg, scheduled: &Scheduled) -> LegRequest {
        let mut headers = self.parsed.headers_of_leg(&self.facts.id, scheduled.chosen.dp_rank);
        for (name, value) in &leg.headers {
            headers.insert(name.clone(), value.clone());
        }
        LegRequest {
            method: self.parsed.method.clone(),
            uri: self.parsed.uri.clone(),
            headers,
            body: self.body(leg),
            repeatable: !self.hands_encodings(),
        }
    }

    /// The client's values of the private fields go out first, so that only the policy's can be there.
    fn body(&self, leg: &CheckedLeg) -> Segments {
        if let Some(raw) = &self.parsed.raw {
            return raw.clone().into();
        }
        let mut edits: Vec<Edit> = PRIVATE_FIELDS.map(|name| Edit::Remove(name.into())).into();
        let (object, handles) = match &self.encoded {
            Some(encoded) => (&encoded.object, encoded.params.as_deref()),
            None => (&self.parsed.client.object, None),
        };
        edits.extend(
            handles
                .map(|params| Edit::Set { name: EC_TRANSFER_PARAMS.into(), value: params.to_owned().into() }),
        );
        edits.extend(leg.edits.iter().cloned());
        edits.extend(self.keeper.as_ref().and_then(Keeper::edit));
        splice(object, &edits)
    }
}

/// What may still be tried, and what need not be tried again.
#[derive(Debug)]
pub(super) struct Retries {
    left: u32,
    pub(super) tried: Vec<InstanceId>,
}

impl Retries {
    pub(super) fn new(left: u32) -> Self {
        Self { left, tried: Vec::new() }
    }

    /// Takes note that `id` failed this request.
    pub(super) fn failed(&mut self, id: InstanceId) {
        self.tried.push(id);
    }

    /// Takes one more try of `phase`, if there is one left and an instance to try it on.
    pub(super) fn take(&mut self, app: &App, phase: Phase) -> bool {
        let untried = app.fleet.snapshot().available(phase, &self.tried).next().is_some();
        untried && self.take_any(app, phase)
    }

    /// Takes one more try, even on the same instances.
    pub(super) fn take_any(&mut self, app: &App, phase: Phase) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        app.metrics.request.retried(crate::error::phase_name(phase));
        true
    }
}
