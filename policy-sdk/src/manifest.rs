//! What a policy says of itself when it is loaded.

/// In which order the two legs of a request run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Handoff {
    /// Prefill runs to its end, then a decode instance is chosen.
    Serial,
    /// Both instances are chosen first, then prefill runs to its end: for
    /// connectors that must tell prefill who will fetch the KV cache.
    SerialPaired,
    /// Both instances are chosen first and both legs start together, if
    /// `merge_kv_params` can shape decode's before prefill has answered; where
    /// it sets no `kv_transfer_params` then, the request runs as with
    /// [`SerialPaired`](Self::SerialPaired). When one leg fails, the other is
    /// ended at once.
    Concurrent,
}

/// Facts that cost the router work, and are gathered only when a policy in the
/// chain asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Fill [`Candidates::cached_tokens`](crate::Candidates::cached_tokens).
    pub cached_tokens: bool,
    /// Let [`Request::prefix_blocks`](crate::Request::prefix_blocks) answer
    /// with hashes.
    pub prefix_blocks: bool,
    /// Call [`Policy::observe`](crate::Policy::observe) with what became of
    /// each request.
    pub outcomes: bool,
}

impl Facts {
    /// Asks for nothing.
    pub const NONE: Self = Self { cached_tokens: false, prefix_blocks: false, outcomes: false };

    /// What either of two policies asks for.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self {
            cached_tokens: self.cached_tokens || other.cached_tokens,
            prefix_blocks: self.prefix_blocks || other.prefix_blocks,
            outcomes: self.outcomes || other.outcomes,
        }
    }
}

/// A policy's name, version and wishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Shown in `/status` and when the policy is loaded; at most 64 bytes of
    /// `[a-z0-9_-]`. Log lines and metrics name the policy after its file.
    pub name: String,
    /// The policy's own version, free text of at most 64 bytes.
    pub version: String,
    /// `None` leaves the choice to the next policy in the chain.
    pub handoff: Option<Handoff>,
    /// The facts that the policy's decisions need.
    pub facts: Facts,
}

impl Manifest {
    /// A manifest that asks for nothing. [`manifest!`](crate::manifest!) takes
    /// name and version from the crate's `Cargo.toml`.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self { name: name.into(), version: version.into(), handoff: None, facts: Facts::NONE }
    }

    /// The same, for a policy that needs the legs in this order.
    #[must_use]
    pub fn with_handoff(self, handoff: Handoff) -> Self {
        Self { handoff: Some(handoff), ..self }
    }

    /// The same, asking also for [`Facts::cached_tokens`].
    #[must_use]
    pub fn with_cached_tokens(mut self) -> Self {
        self.facts.cached_tokens = true;
        self
    }

    /// The same, asking also for [`Facts::prefix_blocks`].
    #[must_use]
    pub fn with_prefix_blocks(mut self) -> Self {
        self.facts.prefix_blocks = true;
        self
    }

    /// The same, asking also for [`Facts::outcomes`].
    #[must_use]
    pub fn with_outcomes(mut self) -> Self {
        self.facts.outcomes = true;
        self
    }
}

/// A [`Manifest`] named after the library, as its file is, and versioned like its package.
#[macro_export]
macro_rules! manifest {
    () => {
        $crate::Manifest::new(env!("CARGO_CRATE_NAME"), env!("CARGO_PKG_VERSION"))
    };
}
