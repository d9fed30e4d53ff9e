//! The connectors, and the policies that serve them.

use edge_router_tests::engine::{Connector, SharedStore};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::RouterBuilder;

use crate::load::{CHAT, COMPLETIONS};

/// Engines with a connector, and whether both legs go out together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    NixlPull,
    NixlPush,
    NixlPushTogether,
    MoriioRead,
    MoriioWrite,
    MoriioWriteTogether,
    Mooncake,
    MooncakeTogether,
    ByContent,
}

impl System {
    /// What the engines of one fleet run with.
    pub(crate) fn connector(self) -> Connector {
        match self {
            Self::NixlPull => Connector::NixlPull,
            Self::NixlPush | Self::NixlPushTogether => Connector::NixlPush,
            Self::MoriioRead => Connector::MoriioRead,
            Self::MoriioWrite | Self::MoriioWriteTogether => Connector::MoriioWrite,
            Self::Mooncake | Self::MooncakeTogether => Connector::Mooncake,
            Self::ByContent => Connector::Content(SharedStore::default()),
        }
    }

    /// A router for the fleet.
    pub(crate) fn router(self, fleet: &Fleet) -> RouterBuilder {
        match self {
            Self::NixlPull => fleet.router(),
            _ => self.shaped(fleet.labelled_router()),
        }
    }

    /// The same, with another policy before the connector's.
    pub(crate) fn router_behind(self, fleet: &Fleet, policy: &str) -> RouterBuilder {
        self.shaped(fleet.labelled_router().policy(policy))
    }

    fn shaped(self, router: RouterBuilder) -> RouterBuilder {
        let policy = match self {
            Self::NixlPull => return router.patient(),
            Self::NixlPush | Self::NixlPushTogether => "nixl_push",
            Self::MoriioRead | Self::MoriioWrite | Self::MoriioWriteTogether => "moriio",
            Self::Mooncake | Self::MooncakeTogether => "mooncake",
            Self::ByContent => "plain",
        };
        let router = router.patient().policy(&format!("{policy}.wasm"));
        let together =
            matches!(self, Self::NixlPushTogether | Self::MoriioWriteTogether | Self::MooncakeTogether);
        if together {
            router.arg("--policy-config").arg(&format!("{policy}={{\"concurrent\":true}}"))
        } else {
            router
        }
    }

    /// The kinds of request, and whether each is streamed, that a row for requests of the named kind is about.
    pub(super) fn kinds(self, asked: &str) -> Vec<(&'static str, bool)> {
        let every = [(COMPLETIONS, false), (CHAT, true), (CHAT, false), (COMPLETIONS, true)];
        // The kinds differ in what comes after the handoff, which is the same with each connector.
        let some = if self == Self::NixlPull { &every[..] } else { &every[..2] };
        some.iter()
            .copied()
            .filter(|(_, stream)| match asked {
                "whole" => !stream,
                "stream" => *stream,
                _ => true,
            })
            .collect()
    }
}
