//! One DP rank of a running engine: its block pool, its queue, its leases.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use super::blocks::{BlockId, BlockPool};
use super::config::Config;
use super::counters::Counters;
use super::fault::Faults;
use super::lease::Leases;
use super::meeting::Meetings;
use crate::lock::lock;

/// One DP rank; all of them share the process, and die together.
pub(crate) struct Rank {
    pub(crate) config: Arc<Config>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) place: Place,
    core: Mutex<Core>,
    changed: Notify,
    death: Death,
    killed: watch::Sender<bool>,
    born: Instant,
}

/// Whether the core is dead, and how often one has died on this machine.
#[derive(Clone)]
pub(crate) struct Death {
    pub(crate) dead: watch::Sender<bool>,
    pub(crate) deaths: Arc<AtomicUsize>,
}

/// Which rank it is, and where peers find it.
pub(crate) struct Place {
    pub(crate) index: usize,
    /// Drawn anew at each start.
    pub(crate) engine_id: String,
    pub(crate) side_port: u16,
    /// The ports of rank 0, to which peers add the rank themselves.
    pub(crate) side_base: u16,
    /// MoRIIO only; else 0.
    pub(crate) notify_base: u16,
}

/// What the rank's lock guards.
pub(crate) struct Core {
    pub(crate) pool: BlockPool,
    pub(crate) leases: Leases,
    pub(crate) counters: Counters,
    pub(crate) running: usize,
    /// Blocks of loads that were given up before a peer has finished them, if it ever does.
    pub(crate) leaked: Vec<BlockId>,
    /// Loads that wait for a peer.
    pub(crate) hanging: usize,
    /// Where prefill's writes and decode's blocks meet.
    pub(crate) meetings: Meetings,
    /// Mooncake: where the worker of an engine id is, as it was when first asked for.
    pub(crate) workers: HashMap<String, SocketAddr>,
    /// Peers that have answered before; losing one of them shows at once.
    pub(crate) known_peers: HashSet<(String, u16, String)>,
    waiting: VecDeque<u64>,
    tickets: u64,
}

/// The blocks of an admitted sequence; the first `cached` of them come from the prefix cache.
pub(crate) struct Grant {
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) cached: usize,
}

impl Rank {
    pub(crate) fn new(config: Arc<Config>, faults: Arc<Faults>, place: Place, death: Death) -> Self {
        let core = Core {
            pool: BlockPool::new(config.blocks),
            leases: Leases::default(),
            counters: Counters::default(),
            running: 0,
            leaked: Vec::new(),
            hanging: 0,
            meetings: Meetings::default(),
            workers: HashMap::new(),
            known_peers: HashSet::new(),
            waiting: VecDeque::new(),
            tickets: 0,
        };
        Self {
            config,
            faults,
            place,
            core: Mutex::new(core),
            changed: Notify::new(),
            death,
            killed: watch::Sender::new(false),
            born: Instant::now(),
        }
    }

    /// Where its side channel is.
    pub(crate) fn side_address(&self) -> SocketAddr {
        SocketAddr::new(self.config.listen.ip(), self.place.side_port)
    }

    /// Its own clock, in seconds: another on each engine, as Python's `perf_counter` is.
    pub(crate) fn clock(&self, at: Instant) -> f64 {
        f64::from(self.place.side_port) + at.duration_since(self.born).as_secs_f64()
    }

    /// The rank's state as of now: leases that have run out by now are gone.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        let mut core = lock(&self.core);
        let now = Instant::now();
        for blocks in core.leases.expire(now) {
            core.counters.kv_expired += 1;
            core.pool.recycle(&blocks);
        }
        core
    }

    /// To be called after anything that may let a waiting sequence in.
    pub(crate) fn notify_waiting(&self) {
        self.changed.notify_waiters();
    }

    /// The engine core dies, as on a failed assertion; the process follows shortly.
    pub(crate) fn die(&self) {
        if !self.death.dead.send_replace(true) {
            self.death.deaths.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The process is killed: whatever of it is still scheduled tells its peers nothing any more.
    pub(crate) fn silence(&self) {
        self.killed.send_replace(true);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.is_dead() || *self.killed.borrow()
    }

    /// Runs beside the requests until it ends, or the process does.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let rank = Arc::clone(self);
        tokio::spawn(async move {
            let mut killed = rank.killed.subscribe();
            tokio::select! {
                () = work => {}
                () = rank.dead() => {}
                _ = killed.wait_for(|killed| *killed) => {}
            }
        });
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.death.dead.borrow()
    }

    /// Resolves when the engine core is dead.
    pub(crate) async fn dead(&self) {
        // The sender lives as long as `self`, so this only ends by a death.
        let _ = self.death.dead.subscribe().wait_for(|dead| *dead).await;
    }

    /// Waits until `look` finds something, looking again after each change.
    pub(crate) async fn wait_for<T>(&self, look: impl Fn(&Core) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look(&self.core()) {
                return found;
            }
            changed.await;
        }
    }

    /// Waits in line until a sequence of `needed` blocks may run. Dropped meanwhile, it leaves the line.
    pub(crate) async fn admit(&self, hashes: &[u64], needed: usize) -> Grant {
        let ticket = Ticket::take(self);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let deadline = {
                let mut core = self.core();
                if let Some(grant) = core.try_admit(ticket.number, hashes, needed, self.config.max_running) {
                    return grant;
                }
                core.leases.next_deadline()
            };
            match deadline {
                Some(deadline) => drop(timeout_at(deadline, changed).await),
                None => changed.await,
            }
        }
    }
}

impl Core {
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Blocks pinned or leaked, each once.
    pub(crate) fn withheld(&self) -> usize {
        self.leases.blocks().chain(self.leaked.iter().copied()).collect::<HashSet<_>>().len()
    }

    /// A load was given up: its blocks stay where they are until a peer has finished it.
    pub(crate) fn abandon(&mut self, blocks: &[BlockId]) {
        self.running -= 1;
        self.counters.aborted += 1;
        self.leaked.extend_from_slice(blocks);
    }

    /// A peer has finished a load that was given up.
    pub(crate) fn reclaim(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            if let Some(at) = self.leaked.iter().position(|leaked| leaked == block) {
                self.leaked.swap_remove(at);
            }
        }
    }

    fn try_admit(&mut self, ticket: u64, hashes: &[u64], needed: usize, max_running: usize) -> Option<Grant> {
        if self.waiting.front() != Some(&ticket) || self.running >= max_running {
            return None;
        }
        // Shared first, so that the allocation cannot take them; undone if it fails.
        let mut blocks = self.pool.longest_prefix(hashes);
        self.pool.share(&blocks);
        let cached = blocks.len();
        let Some(fresh) = self.pool.allocate(needed - cached) else {
            self.pool.release(&blocks);
            return None;
        };
        blocks.extend(fresh);
        self.running += 1;
        Some(Grant { blocks, cached })
    }
}

/// A place in the waiting line.
struct Ticket<'a> {
    rank: &'a Rank,
    number: u64,
}

impl<'a> Ticket<'a> {
    fn take(rank: &'a Rank) -> Self {
        let mut core = rank.core();
        core.tickets += 1;
        let number = core.tickets;
        core.waiting.push_back(number);
        Self { rank, number }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.rank.core().waiting.retain(|number| *number != self.number);
        self.rank.notify_waiting();
    }
}
