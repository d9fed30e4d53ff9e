//! What can go wrong, and how it is done.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use edge_router_policy::connectors::KV_TRANSFER_PARAMS;
use edge_router_policy::{Candidates, Leg, PolicyError, Request, Target};

/// Longer than any deadline of a router.
const SLEEP: Duration = Duration::from_secs(3);
const FLOOD_LINES: u32 = 100_000;
/// More than a router should copy out of a policy, and less than fits its memory.
const OVERSIZED: usize = 8 << 20;

/// In hooks of another kind the faults of scheduling and of legs do nothing.
#[derive(serde::Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// Panics.
    Trap,
    /// Never returns.
    Loop,
    /// Asks for memory until it gets no more.
    Memory,
    /// Calls itself until the stack is full.
    DeepRecursion,
    /// Sleeps in a call of the host.
    Sleep,
    /// Prints lines, then goes on.
    PrintFlood,
    /// Returns an error, where the hook has one.
    Error,
    /// Chooses an instance that is not a candidate.
    WrongId,
    /// Returns more than 8 MB of edits.
    OversizedEdits,
    /// Sets a field to what is no JSON value.
    BadEditJson,
    /// Sets a header that is the router's.
    ForbiddenHeader,
    /// Makes the KV transfer params that the client's field `x_params` says; abstains without one.
    Params,
}

impl Fault {
    /// The fault in a hook that decides nothing.
    pub(crate) fn happen(self) -> Result<(), PolicyError> {
        match self {
            Self::Trap => panic!("a fault, as configured"),
            Self::Loop => loop {
                black_box(());
            },
            Self::Memory => exhaust_memory(),
            Self::DeepRecursion => {
                black_box(dig(0));
            }
            Self::Sleep => thread::sleep(SLEEP),
            Self::PrintFlood => (0..FLOOD_LINES).for_each(|line| println!("line {line} of a flood")),
            Self::Error => return Err("a fault, as configured".into()),
            Self::WrongId
            | Self::OversizedEdits
            | Self::BadEditJson
            | Self::ForbiddenHeader
            | Self::Params => {}
        }
        Ok(())
    }

    /// The fault in a hook that chooses an instance.
    pub(crate) fn decide(self, candidates: &Candidates) -> Result<Option<Target>, PolicyError> {
        self.happen()?;
        let unknown = candidates.ids.iter().max().map_or(0, |highest| highest.wrapping_add(1));
        Ok((self == Self::WrongId).then(|| Target::new(unknown, "no such candidate")))
    }

    /// The fault in a hook that shapes a leg.
    pub(crate) fn shape(self, request: &Request<'_>) -> Result<Option<Leg>, PolicyError> {
        self.happen()?;
        Ok(match self {
            Self::OversizedEdits => Some(Leg::new().set("padding", format!("\"{}\"", "x".repeat(OVERSIZED)))),
            Self::BadEditJson => Some(Leg::new().set("max_tokens", "1, \"n\": 9")),
            Self::ForbiddenHeader => Some(Leg::new().header("content-length", "0")),
            Self::Params => request
                .field("x_params")
                .map(|params| Leg::new().set(KV_TRANSFER_PARAMS, params.into_owned())),
            _ => None,
        })
    }
}

fn exhaust_memory() {
    let mut hoard = Vec::new();
    loop {
        // Not written to: the memory shall end before the time does.
        hoard.push(black_box(Vec::<u8>::with_capacity(4 << 20)));
    }
}

fn dig(depth: u64) -> u64 {
    let ballast = black_box([depth; 64]);
    // Not in tail position, lest it becomes a loop.
    if depth == u64::MAX { 0 } else { dig(depth + 1).wrapping_add(ballast[0]) }
}
