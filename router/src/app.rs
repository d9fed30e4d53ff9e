//! What every request shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use edge_router_policy::{Outcome, Phase};
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::config::{Config, WithoutPrefill};
use crate::discovery::Discovery;
use crate::fleet::{Fleet, HealthState};
use crate::handoff::{Readbacks, Releaser};
use crate::metrics::Metrics;
use crate::pipeline::Homes;
use crate::policy::Chain;

/// Bytes that what is known of kept KV caches may take.
const MAX_READBACKS: usize = 64 << 20;

/// The router's parts.
#[derive(Debug)]
pub struct App {
    /// Settings.
    pub config: Config,
    /// Instances.
    pub fleet: Arc<Fleet>,
    /// Who announces them.
    pub discovery: Arc<Discovery>,
    /// Policies.
    pub chain: Chain,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Outcomes on their way to the policies that asked for them.
    pub outcomes: mpsc::Sender<Outcome>,
    /// Gives back what no decode instance fetches.
    pub releaser: Arc<Releaser>,
    /// What decode instances keep for the next turn.
    pub readbacks: Arc<Readbacks>,
    /// Where stored responses live.
    pub homes: Arc<Homes>,
    ids: Ids,
    draining: AtomicBool,
}

impl App {
    /// Puts the parts together.
    pub fn new(
        config: Config,
        fleet: Arc<Fleet>,
        chain: Chain,
        metrics: Arc<Metrics>,
        outcomes: mpsc::Sender<Outcome>,
    ) -> Self {
        let readbacks = Readbacks::new(config.readback.ttl, MAX_READBACKS).into();
        let (auth, enabled) = (config.engine_auth.clone(), config.release_unused_kv);
        let releaser = Releaser::new(Arc::clone(&fleet), Arc::clone(&metrics), auth, enabled).into();
        Self {
            config,
            discovery: Discovery::new(Arc::clone(&fleet)),
            fleet,
            chain,
            metrics,
            outcomes,
            releaser,
            readbacks,
            homes: Arc::default(),
            ids: Ids::default(),
            draining: AtomicBool::new(false),
        }
    }

    /// A new request id: 32 hex digits, unique among all that this process gives out and, for all
    /// practical purposes, among those of its replicas.
    pub fn new_id(&self) -> String {
        self.ids.next()
    }

    /// From now on nothing new is served.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether the router is being shut down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether a request could be served now, and if not, why.
    ///
    /// # Errors
    /// A sentence for `/readyz`.
    pub fn ready(&self) -> Result<(), &'static str> {
        if self.is_draining() {
            return Err("shutting down");
        }
        let snapshot = self.fleet.snapshot();
        if snapshot.instances.is_empty() {
            return Err("waiting for instances: none is known yet");
        }
        if !snapshot.can_serve(Phase::Decode) {
            return Err("no decode instance is healthy and not being drained");
        }
        // Right after the start, decode alone could serve, and encode too; but it would be given the work of
        // a whole fleet because the first probe of the others is a moment late.
        let starting = |phase| {
            let mut serving = snapshot.serving(phase);
            !snapshot.can_serve(phase) && serving.any(|i| i.health().state() == HealthState::Starting)
        };
        if starting(Phase::Encode) {
            return Err("waiting for the first encode instance");
        }
        let mut prefill = snapshot.serving(Phase::Prefill).peekable();
        if prefill.peek().is_none() || snapshot.can_serve(Phase::Prefill) {
            return Ok(());
        }
        if self.config.without_prefill == WithoutPrefill::Reject {
            return Err("no prefill instance is healthy and not being drained");
        }
        if starting(Phase::Prefill) { Err("waiting for the first prefill instance") } else { Ok(()) }
    }
}

#[derive(Debug)]
struct Ids {
    seed: u64,
    count: AtomicU64,
}

impl Default for Ids {
    fn default() -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        // The standard library's random keys spare a dependency on a random number generator.
        Self { seed: RandomState::new().hash_one(std::process::id()), count: AtomicU64::new(0) }
    }
}

impl Ids {
    fn next(&self) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        format!("{:032x}", xxh3_128_with_seed(&count.to_le_bytes(), self.seed))
    }
}
