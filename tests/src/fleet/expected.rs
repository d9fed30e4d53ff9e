//! What a test has done to its engines on purpose, and whether they are otherwise as they should be.

use std::time::Duration;

use super::Fleet;
use crate::engine::Engine;

/// What is left on purpose; nothing by default.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
    pinned: usize,
    pinned_some: bool,
    readbacks: usize,
    expired: u64,
    late: u64,
    leaked: usize,
    leaked_some: bool,
    deaths: usize,
    violations: bool,
    anything: bool,
}

impl Expected {
    /// Whether nobody is to look.
    pub(super) fn anything(&self) -> bool {
        self.anything
    }
}

impl Fleet {
    /// So many handoffs are left unread on purpose.
    pub fn expect_pinned(&mut self, handoffs: usize) {
        self.expected.pinned = handoffs;
    }

    /// Handoffs are left unread on purpose; how many is chance.
    pub fn expect_pinned_some(&mut self) {
        self.expected.pinned_some = true;
    }

    /// So many answers are left pinned by decode engines, for a next turn that does not come.
    pub fn expect_readbacks(&mut self, answers: usize) {
        self.expected.readbacks = answers;
    }

    /// So many leases have run out on purpose.
    pub fn expect_expired(&mut self, leases: u64) {
        self.expected.expired = leases;
    }

    /// So many handoffs are read, on purpose, when they are pinned no more.
    pub fn expect_late_reads(&mut self, reads: u64) {
        self.expected.late = reads;
    }

    /// So many blocks are leaked on purpose.
    pub fn expect_leaked(&mut self, blocks: usize) {
        self.expected.leaked = blocks;
    }

    /// Blocks may be leaked; whether they are is chance.
    pub fn expect_leaked_some(&mut self) {
        self.expected.leaked_some = true;
    }

    /// Engines die so often on purpose, those that were restarted included.
    pub fn expect_deaths(&mut self, deaths: usize) {
        self.expected.deaths = deaths;
    }

    /// Requests that strict mode objects to are sent on purpose.
    pub fn expect_violations(&mut self) {
        self.expected.violations = true;
    }

    /// The test itself says what state it leaves the engines in: for those that are about a wrong one.
    pub fn expect_anything(&mut self) {
        self.expected.anything = true;
    }
}

/// How the engines are.
pub(super) enum State {
    /// As they should be.
    Settled,
    /// Something is left that may still go.
    NotYet(String),
    /// Something has happened that should not have.
    Wrong(String),
}

impl State {
    /// How long to wait before looking again.
    pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(5);

    pub(super) fn of<'a>(engines: &(impl Iterator<Item = &'a Engine> + Clone), expected: &Expected) -> Self {
        let sum = |of: &dyn Fn(&Engine) -> usize| engines.clone().map(of).sum::<usize>();
        let deaths = sum(&Engine::deaths);
        let expired: u64 = engines.clone().map(|engine| engine.counters().kv_expired).sum();
        let late: u64 = engines.clone().map(|engine| engine.counters().notifications_after_expiry).sum();
        let violations: Vec<String> = engines.clone().flat_map(Engine::violations).collect();
        if deaths > expected.deaths {
            return Self::Wrong(format!("{deaths} engines died of what they were sent"));
        }
        if expired > expected.expired && !expected.pinned_some {
            return Self::Wrong(format!("{expired} leases ran out"));
        }
        if late > expected.late {
            return Self::Wrong(format!("{late} handoffs were read when they were pinned no more"));
        }
        if !expected.violations && !violations.is_empty() {
            return Self::Wrong(format!("engines object to what they were sent: {violations:#?}"));
        }
        let readbacks = sum(&Engine::pinned_readbacks);
        let pinned = sum(&Engine::pinned) - readbacks;
        let leaked = sum(&Engine::leaked_blocks);
        let found = (pinned, readbacks, leaked, expired, late, deaths);
        let wanted = (
            if expected.pinned_some { pinned } else { expected.pinned },
            expected.readbacks,
            if expected.leaked_some { leaked } else { expected.leaked },
            if expected.pinned_some { expired } else { expected.expired },
            expected.late,
            expected.deaths,
        );
        if found != wanted || !engines.clone().all(is_idle) {
            let names = "(pinned, pinned for a next turn, leaked blocks, expired, late reads, deaths)";
            return Self::NotYet(format!("engines are not quiescent: {names} are {found:?}, not {wanted:?}"));
        }
        Self::Settled
    }
}

/// Whether nothing runs, each block is free, pinned or leaked, and each handoff was taken once, has run out, or is there.
fn is_idle(engine: &Engine) -> bool {
    let held = engine.total_blocks() - engine.free_blocks();
    let counters = engine.counters();
    let accounted = counters.completed + counters.kv_expired + engine.pinned() as u64;
    engine.running() + engine.waiting() == 0
        && held == engine.withheld_blocks()
        && counters.pinned == accounted
}
