//! The guest's side of the component boundary.

#[allow(missing_docs, unsafe_code, unused_qualifications, reason = "generated")]
#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../wit",
        world: "policy",
        pub_export_macro: true,
        export_macro_name: "__export_policy",
    });
}
pub use bindings::__export_policy;

mod convert;
mod hooks;
mod request;

use std::cell::RefCell;
use std::thread::LocalKey;

use crate::{Policy, PolicyError, log::Level};
use bindings::edge_router::policy::log as host;

/// Holds the one instance of the policy from `configure` on.
pub type Slot<P> = LocalKey<RefCell<Option<P>>>;

/// What [`export!`](crate::export!) makes: a type to hang the exported
/// functions on, and the place where its policy lives.
pub trait Component {
    /// The policy that the component exports.
    type Policy: Policy + 'static;

    /// Where it lives.
    fn slot() -> &'static Slot<Self::Policy>;
}

/// Calls a hook of the policy.
fn with_policy<C: Component, T>(
    hook: impl FnOnce(&mut C::Policy) -> Result<T, PolicyError>,
) -> Result<T, String> {
    C::slot().with_borrow_mut(|policy| match policy {
        Some(policy) => hook(policy).map_err(|error| error.to_string()),
        None => Err("called before `configure` succeeded".to_owned()),
    })
}

pub(crate) fn log(level: Level, message: &str) {
    let level = match level {
        Level::Error => host::Level::Error,
        Level::Warn => host::Level::Warn,
        Level::Info => host::Level::Info,
        Level::Debug => host::Level::Debug,
    };
    host::write(level, message);
}
