//! Engines with several data-parallel ranks: both legs speak of the same one.

use std::collections::HashSet;

use anyhow::Result;
use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;

use super::bodies;
use crate::load::all_right;
use crate::matrix::System;

const REQUESTS: usize = 40;

/// What decode was told of prefill's rank: by its engine id, or with MoRIIO, where the ranks share one, by its number.
fn told_ranks(decode: &Engine) -> HashSet<String> {
    let told = bodies(decode).into_iter().map(|body| {
        let params = &body["kv_transfer_params"];
        let rank = Some(&params["remote_dp_rank"]).filter(|rank| !rank.is_null());
        rank.unwrap_or(&params["remote_engine_id"]).to_string()
    });
    told.collect()
}

/// Two ranks on each engine; whether all KV caches are handed over, from either rank if the legs name one.
async fn hands_over(system: System, is_pinned: bool) -> Result<()> {
    let connector = system.connector();
    let fleet = Fleet::start_with(2, 2, |engine| engine.connector(connector.clone()).dp_size(2)).await?;
    let router = system.router(&fleet);
    let router = if system == System::NixlPull { fleet.labelled_router() } else { router };
    let router = router.start().await?;
    all_right(&fleet, &router, REQUESTS, 6).await?;
    let loads: u64 = fleet.decode.iter().map(|engine| engine.counters().remote_loads).sum();
    assert_eq!(loads, REQUESTS as u64);
    let metrics = router.metrics().await?;
    for counter in ["fallbacks", "retries", "policy_faults"] {
        assert_eq!(metrics.sum(&format!("edge_router_{counter}_total"), &[]), 0.0, "{counter}");
    }
    if is_pinned {
        let ranks: HashSet<_> = fleet.decode.iter().flat_map(told_ranks).collect();
        // MoRIIO's two engines number theirs alike.
        assert!(ranks.len() >= 2, "{ranks:?}");
        for leg in fleet.prefill.iter().flat_map(Engine::requests) {
            assert!(leg.header("x-data-parallel-rank").is_some(), "{leg:?}");
        }
    }
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn pull_from_the_rank_that_prefill_names() -> Result<()> {
    hands_over(System::NixlPull, false).await
}

#[tokio::test]
async fn push_from_the_rank_that_prefill_names() -> Result<()> {
    hands_over(System::NixlPush, false).await
}

#[tokio::test]
async fn push_from_a_rank_that_is_agreed_on() -> Result<()> {
    hands_over(System::NixlPushTogether, true).await
}

#[tokio::test]
async fn moriio_reads_from_the_rank_that_prefill_names() -> Result<()> {
    hands_over(System::MoriioRead, false).await
}

#[tokio::test]
async fn moriio_writes_from_a_rank_that_is_agreed_on() -> Result<()> {
    hands_over(System::MoriioWrite, true).await?;
    hands_over(System::MoriioWriteTogether, true).await
}

#[tokio::test]
async fn mooncake_from_a_rank_that_is_agreed_on() -> Result<()> {
    hands_over(System::Mooncake, true).await?;
    hands_over(System::MooncakeTogether, true).await
}
