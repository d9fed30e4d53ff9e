//! MoRIIO, prefill writes (engine contract §3.6), and the two modes mixed.

use std::time::Duration;

use anyhow::Result;
use edge_router_tests::engine::{Connector, Engine};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};

use super::moriio_read::{address, asked, prefill};
use super::{ask, handed, hangs, hasty, paused, prefill_leg, right, story, text, with};

/// What decode is told when both legs begin at once.
fn ahead(prefill: &Engine, transfer: &str) -> Result<Value> {
    let mut params = json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": null, "remote_block_ids": null,
        "transfer_id": transfer, "remote_dp_size": prefill.dp_size(), "remote_tp_size": 1,
    });
    params.as_object_mut().into_iter().for_each(|params| params.extend(address(prefill).unwrap_or_default()));
    Ok(params)
}

#[tokio::test]
async fn one_leg_after_the_other() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioWrite)).await?;
    let params = prefill(&fleet, "tx-1", 1).await?;
    assert_eq!(text(&fleet.decode[0], &handed(&story(1), &params)).await?, right(&fleet, &story(1)).await?);
    // Prefill hears of it a moment after decode.
    fleet.assert_quiescent().await;
    assert_eq!((fleet.prefill[0].counters().completed, fleet.decode[0].counters().remote_loads), (1, 1));
    Ok(())
}

#[tokio::test]
async fn both_legs_at_once() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioWrite)).await?;
    let body = handed(&story(1), &ahead(&fleet.prefill[0], "tx-1")?);
    let second = async {
        eventually("decode waits", || fleet.decode[0].hanging() == 1).await?;
        prefill(&fleet, "tx-1", 1).await
    };
    let (answer, _) = tokio::try_join!(ask(&fleet.decode[0], &body), second)?;
    assert_eq!(answer.ok()?.transcript().text(), right(&fleet, &story(1)).await?);
    Ok(())
}

#[tokio::test]
async fn decode_waits_for_good_for_what_never_comes() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioWrite)).await?;
    let body = handed(&story(1), &ahead(&fleet.prefill[0], "tx-1")?);
    hangs(&fleet.decode[0], "one", &body).await?;
    let leaked = fleet.decode[0].leaked_blocks();
    assert!(leaked > 0);
    fleet.expect_leaked(leaked);
    Ok(())
}

#[tokio::test]
async fn a_transfer_that_has_ended_is_not_heard_again() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioWrite)).await?;
    let params = prefill(&fleet, "tx-1", 1).await?;
    text(&fleet.decode[0], &handed(&story(1), &params)).await?;
    // Another prompt, which decode does not have.
    prefill(&fleet, "tx-1", 2).await?;
    hangs(&fleet.decode[0], "one", &handed(&story(2), &params)).await?;
    let leaked = fleet.decode[0].leaked_blocks();
    fleet.expect_leaked(leaked);
    fleet.expect_expired(1);
    Ok(())
}

#[tokio::test]
async fn a_transfer_that_was_aborted_is_not_heard_again_either() -> Result<()> {
    let slow = Duration::from_secs(600);
    let mut fleet =
        Fleet::start_with(1, 1, |e| hasty(Connector::MoriioWrite)(e).max_running(1).token_delay(slow))
            .await?;
    let body = prefill_leg(&story(1), &asked(&fleet.decode[0], "tx-1")?);
    tokio::select! {
        _ = ask(&fleet.prefill[0], &body) => panic!("answered"),
        runs = eventually("prefill is at it", || fleet.prefill[0].running() == 1) => runs?,
    }
    eventually("prefill sees the abort", || fleet.prefill[0].counters().aborted == 1).await?;
    hangs(&fleet.decode[0], "one", &handed(&story(1), &ahead(&fleet.prefill[0], "tx-1")?)).await?;
    let leaked = fleet.decode[0].leaked_blocks();
    fleet.expect_leaked(leaked);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn prefill_gives_up_and_tells_all_ranks() -> Result<()> {
    let two_ranks = |e| paused(Connector::MoriioWrite)(e).dp_size(2);
    let mut fleet = Fleet::start_with(1, 1, two_ranks).await?;
    let params = prefill(&fleet, "tx-1", 1).await?;
    let other = 1 - params["remote_dp_rank"].as_u64().unwrap_or_default();
    let params =
        with(&with(&params, "remote_dp_rank_override", json!(false)), "remote_dp_rank", json!(other));
    let began = tokio::time::Instant::now();
    assert_eq!(ask(&fleet.decode[0], &handed(&story(1), &params)).await?.status, 500);
    let seconds = began.elapsed().as_secs_f64() * 100.0;
    assert!((55.0..63.0).contains(&seconds), "{seconds}");
    fleet.expect_expired(1);
    fleet.assert_quiescent().await;
    // Who comes later is told nothing.
    let late = with(&params, "remote_dp_rank", json!(1 - other));
    hangs(&fleet.decode[0], "late", &handed(&story(1), &late)).await?;
    let leaked = fleet.decode[0].leaked_blocks();
    fleet.expect_leaked(leaked);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn decode_that_may_announce_itself_from_one_rank_only_is_silent_on_others() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioWrite)).await?;
    let params = with(&ahead(&fleet.prefill[0], "tx-1")?, "remote_dp_rank_override", json!(true));
    hangs(&fleet.decode[0], "one", &handed(&story(1), &with(&params, "remote_dp_rank", json!(1)))).await?;
    prefill(&fleet, "tx-1", 1).await?;
    let leaked = fleet.decode[0].leaked_blocks();
    fleet.expect_leaked(leaked);
    fleet.expect_expired(1);
    // Told that nothing comes, decode frees what it has held.
    eventually("prefill gives up", || fleet.decode[0].leaked_blocks() == 0).await?;
    fleet.expect_leaked(0);
    Ok(())
}

#[tokio::test]
async fn a_reader_and_a_writer_do_not_meet() -> Result<()> {
    let mut read = Fleet::start_with(1, 1, hasty(Connector::MoriioRead)).await?;
    let mut write = Fleet::start_with(1, 1, hasty(Connector::MoriioWrite)).await?;
    let params = prefill(&read, "tx-1", 1).await?;
    hangs(&write.decode[0], "one", &handed(&story(1), &params)).await?;
    let leaked = write.decode[0].leaked_blocks();
    write.expect_leaked(leaked);
    let params = prefill(&write, "tx-2", 1).await?;
    assert_eq!(ask(&read.decode[0], &handed(&story(1), &params)).await?.status, 500);
    read.expect_expired(1);
    write.expect_expired(1);
    Ok(())
}
