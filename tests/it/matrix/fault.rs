//! What goes wrong, by the names of the table.

use anyhow::{Result, bail};
use edge_router_tests::engine::{EngineBuilder, Fault, Step};
use edge_router_tests::fleet::Fleet;
use tokio::time::Duration;

/// Lets it go wrong with the next request, which is streamed or not.
pub(super) async fn inflict(name: &str, fleet: &Fleet, stream: bool) -> Result<()> {
    let (prefill, decode) = (&fleet.prefill[0], &fleet.decode[0]);
    match name {
        "prefill refuses" => prefill.kill().await,
        "prefill 500" => prefill.fault(Fault::status(500)),
        "prefill cut" => prefill.fault(Fault::close_after_headers()),
        "prefill stops" => prefill.fault(Fault::finish_with_stop()),
        "decode refuses" => decode.kill().await,
        "decode 503" => decode.fault(Fault::status(503)),
        "decode 500" => decode.fault(Fault::status(500)),
        "error after role" | "… with held opening" => decode.fault(Fault::error_after(0)),
        // A whole answer is one frame, a chat's role is one, and so is each token.
        "decode cut" => decode.fault(Fault::cut_after(if stream { 2 } else { 0 })),
        "leaves at prefill" | "leaves at decode" => {}
        _ => bail!("no such fault: {name}"),
    }
    Ok(())
}

/// Engines that are still at it when the client leaves.
pub(super) fn engines(name: &str, engine: EngineBuilder) -> EngineBuilder {
    match name {
        "leaves at prefill" => engine.prefill_per_1k(Duration::from_secs(36_000)),
        "leaves at decode" => engine.token_delay(Duration::from_millis(2)),
        _ => engine,
    }
}

/// What the router must be told besides its engines.
pub(super) fn args(name: &str) -> &'static [&'static str] {
    match name {
        "… with held opening" => &["--hold-opening-ms", "3600000"],
        _ => &[],
    }
}

/// The step at which the client leaves, if it does.
pub(super) fn client_leaves_at(name: &str) -> Option<Step> {
    match name {
        "leaves at prefill" => Some(Step::Prefill),
        "leaves at decode" => Some(Step::Decode),
        _ => None,
    }
}
