//! The host's side of the contract: what a policy can call.

use std::borrow::Cow;
use std::sync::Arc;

use edge_router_policy::RequestSource as _;
use wasmtime::StoreLimits;
use wasmtime::component::{Resource, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::bindings::edge_router::policy::{log, request};
use super::facts::RequestFacts;
use super::guest_log::GuestLog;

/// Stands for the request in a handle. There is only ever one, that of the running call.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct Lent;

/// What belongs to one instance of a policy.
pub(super) struct Host {
    pub(super) wasi: WasiCtx,
    pub(super) table: ResourceTable,
    pub(super) limits: StoreLimits,
    pub(super) log: GuestLog,
    /// The request of the running call.
    pub(super) current: Option<Arc<RequestFacts>>,
}

impl Host {
    /// A handle that is valid for one call.
    pub(super) fn lent() -> Resource<Lent> {
        Resource::new_borrow(0)
    }

    fn current(&self) -> wasmtime::Result<&RequestFacts> {
        self.current
            .as_deref()
            .ok_or_else(|| wasmtime::Error::msg("a request handle was used after its call"))
    }
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl request::Host for Host {}

impl request::HostRequest for Host {
    fn endpoint(&mut self, _: Resource<Lent>) -> wasmtime::Result<String> {
        Ok(self.current()?.endpoint().into_owned())
    }

    fn model(&mut self, _: Resource<Lent>) -> wasmtime::Result<Option<String>> {
        Ok(self.current()?.model().map(Cow::into_owned))
    }

    fn body_length(&mut self, _: Resource<Lent>) -> wasmtime::Result<u64> {
        Ok(self.current()?.body_length())
    }

    fn prompt_tokens(&mut self, _: Resource<Lent>) -> wasmtime::Result<u32> {
        Ok(self.current()?.prompt_tokens())
    }

    fn field(&mut self, _: Resource<Lent>, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.current()?.field(&name).map(Cow::into_owned))
    }

    fn header(&mut self, _: Resource<Lent>, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.current()?.header(&name).map(Cow::into_owned))
    }

    fn session_key(&mut self, _: Resource<Lent>) -> wasmtime::Result<Option<String>> {
        Ok(self.current()?.session_key().map(Cow::into_owned))
    }

    fn id(&mut self, _: Resource<Lent>) -> wasmtime::Result<String> {
        Ok(self.current()?.id().into_owned())
    }

    fn prefix_blocks(&mut self, _: Resource<Lent>) -> wasmtime::Result<Vec<u64>> {
        Ok(self.current()?.prefix_blocks())
    }

    fn prefill_field(&mut self, _: Resource<Lent>, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.current()?.prefill_field(&name).map(Cow::into_owned))
    }

    fn readback(&mut self, _: Resource<Lent>) -> wasmtime::Result<Option<String>> {
        Ok(self.current()?.readback().map(Cow::into_owned))
    }

    fn drop(&mut self, _: Resource<Lent>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl log::Host for Host {
    fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            log::Level::Error => tracing::Level::ERROR,
            log::Level::Warn => tracing::Level::WARN,
            log::Level::Info => tracing::Level::INFO,
            log::Level::Debug => tracing::Level::DEBUG,
        };
        self.log.line(level, &message);
        Ok(())
    }
}
