//! One DP rank of a running engine: its block pool, its queue, its leases.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use super::blocks::{BlockId, BlockPool};
use super::config::Config;
use super::counters::Counters;
use super::fault::Faults;
use super::lease::Leases;
use crate::lock::lock;

/// One DP rank; all of them share the process, and die together.
pub(crate) struct Rank {
    pub(crate) config: Arc<Config>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) index: usize,
    /// Drawn anew at each start.
    pub(crate) engine_id: String,
    pub(crate) side_port: u16,
    core: Mutex<Core>,
    changed: Notify,
    death: watch::Sender<bool>,
    killed: AtomicBool,
}

/// What the rank's lock guards.
pub(crate) struct Core {
    pub(crate) pool: BlockPool,
    pub(crate) leases: Leases,
    pub(crate) counters: Counters,
    pub(crate) running: usize,
    /// Blocks that nothing will ever free (an unserved load that was aborted).
    pub(crate) leaked: usize,
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
    pub(crate) fn new(
        config: Arc<Config>,
        faults: Arc<Faults>,
        index: usize,
        engine_id: String,
        side_port: u16,
        death: watch::Sender<bool>,
    ) -> Self {
        let core = Core {
            pool: BlockPool::new(config.blocks),
            leases: Leases::default(),
            counters: Counters::default(),
            running: 0,
            leaked: 0,
            known_peers: HashSet::new(),
            waiting: VecDeque::new(),
            tickets: 0,
        };
        Self {
            config,
            faults,
            index,
            engine_id,
            side_port,
            core: Mutex::new(core),
            changed: Notify::new(),
            death,
            killed: AtomicBool::new(false),
        }
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
        self.death.send_replace(true);
    }

    /// The process is killed: whatever of it is still scheduled tells its peers nothing any more.
    pub(crate) fn silence(&self) {
        self.killed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.is_dead() || self.killed.load(Ordering::Relaxed)
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.death.borrow()
    }

    /// Resolves when the engine core is dead.
    pub(crate) async fn dead(&self) {
        // The sender lives as long as `self`, so this only ends by a death.
        let _ = self.death.subscribe().wait_for(|dead| *dead).await;
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
