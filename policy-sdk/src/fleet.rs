//! Instances, and what it means to choose one.

/// The step of a request for which an instance is being chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Multimodal encoding, before prefill.
    Encode,
    /// Computing the prompt's KV cache.
    Prefill,
    /// Fetching that KV cache and producing tokens.
    Decode,
}

/// What an instance serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Multimodal encoder.
    Encode,
    /// Prefill only (`kv_producer`).
    Prefill,
    /// Decode only (`kv_consumer`).
    Decode,
    /// Prefill and decode (`kv_both`, or an engine without a connector).
    Both,
    /// Renders prompts to token ids; runs no model.
    Render,
}

/// Names one instance for as long as the router process lives. An instance
/// that restarts under the same address comes back with a new id, and an id is
/// never given out twice; across restarts and router replicas only
/// [`Instance::address`] is stable.
pub type InstanceId = u32;

/// One engine as the router knows it. Figures that change with every request
/// are in [`Candidates`](crate::Candidates), not here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its id in candidates and targets.
    pub id: InstanceId,
    /// What it serves.
    pub role: Role,
    /// `host:port` of its HTTP server, as configured or announced.
    pub address: String,
    /// Data-parallel ranks that may be addressed one by one; 1 when unknown.
    pub dp_size: u32,
    /// Tensor-parallel size; 1 when unknown.
    pub tp_size: u32,
    /// What configuration or discovery said beside the address, for example
    /// `zmq_address`, `transfer_mode` or `zone`. Names are unique.
    pub labels: Vec<(String, String)>,
}

impl Instance {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// An instance, and where it has several data-parallel ranks, which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The instance.
    pub instance: InstanceId,
    /// Sent to the engine as `X-data-parallel-rank`. Below the instance's
    /// `dp_size`; `None` lets the engine choose.
    pub dp_rank: Option<u32>,
}

/// The instances that a request has been given so far. What has not been
/// decided yet is `None`: with a serial handoff `decode` is `None` while the
/// prefill leg is rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Where the prompt is computed.
    pub prefill: Option<Placement>,
    /// Where the tokens are produced.
    pub decode: Option<Placement>,
}

/// A scheduling decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The chosen candidate.
    pub instance: InstanceId,
    /// As in [`Placement::dp_rank`].
    pub dp_rank: Option<u32>,
    /// A few words for the request's trace, such as `cached 512 of 600`; the
    /// router cuts it at 128 bytes.
    pub reason: String,
}

impl Target {
    /// Chooses an instance and lets the engine choose the data-parallel rank.
    pub fn new(instance: InstanceId, reason: impl Into<String>) -> Self {
        Self { instance, dp_rank: None, reason: reason.into() }
    }

    /// The same, pinned to a data-parallel rank.
    #[must_use]
    pub fn with_dp_rank(self, dp_rank: u32) -> Self {
        Self { dp_rank: Some(dp_rank), ..self }
    }

    /// Where the target points, without the reason.
    pub fn placement(&self) -> Placement {
        Placement { instance: self.instance, dp_rank: self.dp_rank }
    }
}
