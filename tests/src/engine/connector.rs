//! KV connectors: which way a prompt's KV cache goes from the engine that computed it to the one that generates.

pub(crate) mod bidirectional;
pub(crate) mod content;
pub(crate) mod mooncake;
pub(crate) mod moriio;
pub(crate) mod nixl;
pub(crate) mod push;

pub use content::SharedStore;

/// The KV connector of an engine (`--kv-transfer-config`); the engine contract has a section for each.
#[derive(Clone, Debug, Default)]
pub enum Connector {
    /// No connector: `kv_transfer_params` are ignored.
    None,
    /// NIXL, decode reads (§4.1, §4.2).
    #[default]
    NixlPull,
    /// NIXL, prefill writes into the blocks that decode has registered with it (§4.3).
    NixlPush,
    /// MoRIIO, decode reads (§3.5).
    MoriioRead,
    /// MoRIIO, prefill writes into the blocks that decode has announced to it (§3.6).
    MoriioWrite,
    /// Mooncake: decode asks prefill's worker, which it finds by prefill's bootstrap server (§5).
    Mooncake,
    /// KV caches are found by the prompt, in a store that engines share; there are no params (§1).
    Content(SharedStore),
}

impl Connector {
    /// What both ends of a connection must have in common, beside the build.
    pub(crate) fn dialect(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NixlPull => "pull",
            Self::NixlPush => "push",
            Self::MoriioRead => "read",
            Self::MoriioWrite => "write",
            Self::Mooncake => "mooncake",
            Self::Content(_) => "content",
        }
    }

    /// `transfer_mode` as MoRIIO's engines announce it; `None` with another connector.
    pub(crate) fn moriio_mode(&self) -> Option<&'static str> {
        match self {
            Self::MoriioRead => Some("READ"),
            Self::MoriioWrite => Some("WRITE"),
            _ => None,
        }
    }
}
