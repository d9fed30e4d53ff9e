//! Readbacks that come to nothing cost the time that they took.

use anyhow::Result;
use edge_router_tests::engine::{EngineBuilder, Fault};
use edge_router_tests::fleet::Fleet;

use super::{GENERATE, Scene, generate, next, opening};

#[tokio::test]
async fn prefill_that_fails_over_it_is_asked_again_without() -> Result<()> {
    let mut scene = Scene::new().await?;
    scene.right(&scene.client, GENERATE, &generate(&opening())).await?;
    let prompt = next(&opening(), &scene.follows(&opening()).await?);
    for prefill in &scene.fleet.prefill {
        prefill.fault(Fault::status(500).on_prefill());
    }
    // One of the two faults is for another request.
    scene.fleet.prefill[0].clear_faults();
    scene.right(&scene.client, GENERATE, &generate(&prompt)).await?;
    assert_eq!((scene.readbacks().await?, scene.orphans().await?), ((1.0, 0), 1.0));
    let metrics = scene.router.metrics().await?;
    assert_eq!(metrics.sum("edge_router_retries_total", &["leg=\"prefill\""]), 1.0);
    assert_eq!(metrics.sum("edge_router_fallbacks_total", &[]), 0.0);
    assert_eq!(metrics.sum("edge_router_instance_failures", &[]), 0.0, "it is no fault of the instance");
    scene.fleet.expect_readbacks(2);
    Ok(())
}

#[tokio::test]
async fn what_decode_has_lost_is_computed() -> Result<()> {
    let hasty = |engine: EngineBuilder| engine.bidirectional().time_scale(0.1);
    let fleet = Fleet::start_with(2, 1, hasty).await?;
    let router = fleet.labelled_router();
    let mut scene = Scene::of(fleet, router).await?;
    scene.right(&scene.client, GENERATE, &generate(&opening())).await?;
    let prompt = next(&opening(), &scene.follows(&opening()).await?);
    scene.fleet.decode[0].restart().await?;
    scene.right(&scene.client, GENERATE, &generate(&prompt)).await?;
    assert_eq!((scene.readbacks().await?, scene.orphans().await?), ((1.0, 0), 1.0));
    scene.fleet.expect_readbacks(1);
    Ok(())
}
