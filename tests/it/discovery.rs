//! Instances that are announced while the router runs.

mod bootstrap;
mod dns;
mod file;
mod registration;

use anyhow::{Context, Result};
use edge_router_tests::client::PATIENCE;
use edge_router_tests::router::Router;
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep};

/// Waits until `/status` lists these addresses as healthy, in any order, and no others; then returns them.
pub(crate) async fn consists_of<const N: usize>(router: &Router, addresses: [&str; N]) -> Result<Vec<Value>> {
    let mut expected = addresses.to_vec();
    expected.sort_unstable();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = router.status().await?;
        let instances = status["instances"].as_array().context("no instances")?;
        let healthy = instances.iter().all(|i| i["state"] == "healthy");
        let mut there: Vec<&str> = instances.iter().filter_map(|i| i["address"].as_str()).collect();
        there.sort_unstable();
        if healthy && there == expected {
            return Ok(instances.clone());
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "not {expected:?}: {status:#}\n{}",
            router.log().join("\n")
        );
        sleep(Duration::from_millis(10)).await;
    }
}

/// Looks again and again until `holds`.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await? {
        anyhow::ensure!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// What `/status` says of the source with that name.
async fn source(router: &Router, name: &str) -> Result<Value> {
    let status = router.status().await?;
    let sources = status["discovery"].as_array().context("no sources")?;
    sources.iter().find(|source| source["name"] == name).cloned().with_context(|| format!("no source {name}"))
}

/// Waits until a source is in trouble, and returns what it says of it.
async fn problem_of(router: &Router, name: &str) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(problem) = source(router, name).await?["problem"].as_str() {
            return Ok(problem.to_owned());
        }
        anyhow::ensure!(Instant::now() < deadline, "{name} is in no trouble");
        sleep(Duration::from_millis(10)).await;
    }
}
