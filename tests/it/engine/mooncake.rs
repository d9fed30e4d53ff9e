//! Mooncake: legs are joined by the transfer id, and prefill is found by its bootstrap server (engine contract §5).

use anyhow::{Context, Result};
use edge_router_tests::client::Client;
use edge_router_tests::engine::{Connector, Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};

use super::{ask, dies, handed, hangs, hasty, paused, prefill_leg, right, story, text, with, without};

fn asked(transfer: &str) -> Value {
    json!({ "do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer })
}

fn told(prefill: &Engine, transfer: &str) -> Result<Value> {
    let bootstrap = prefill.bootstrap_address().context("it has a bootstrap server")?;
    Ok(json!({
        "do_remote_decode": false, "do_remote_prefill": true, "transfer_id": transfer,
        "remote_bootstrap_addr": format!("http://{bootstrap}"), "remote_engine_id": prefill.engine_ids()[0],
    }))
}

async fn prefill(fleet: &Fleet, transfer: &str, number: usize) -> Result<()> {
    let answer = ask(&fleet.prefill[0], &prefill_leg(&story(number), &asked(transfer))).await?.ok()?;
    anyhow::ensure!(answer.json()["kv_transfer_params"].is_null(), "{}", answer.text());
    Ok(())
}

#[tokio::test]
async fn either_leg_may_come_first() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, hasty(Connector::Mooncake)).await?;
    let (from, to) = (&fleet.prefill[0], &fleet.decode[0]);
    prefill(&fleet, "a", 1).await?;
    assert_eq!(from.pinned(), 1);
    assert_eq!(text(to, &handed(&story(1), &told(from, "a")?)).await?, right(&fleet, &story(1)).await?);
    let body = handed(&story(2), &told(from, "b")?);
    let second = async {
        eventually("decode waits", || to.hanging() == 1).await?;
        prefill(&fleet, "b", 2).await
    };
    let (answer, ()) = tokio::try_join!(ask(to, &body), second)?;
    assert_eq!(answer.ok()?.transcript().text(), right(&fleet, &story(2)).await?);
    assert_eq!((from.counters().completed, to.counters().remote_loads), (2, 2));
    Ok(())
}

#[tokio::test]
async fn the_bootstrap_server_knows_each_rank_of_this_life() -> Result<()> {
    let engine = Engine::prefill().connector(Connector::Mooncake).dp_size(2).start().await?;
    let bootstrap = Client::new(&engine.bootstrap_address().context("a server")?);
    let query = async || anyhow::Ok(bootstrap.get("/query").await?.ok()?.json());
    let before = query().await?;
    assert_eq!(before["1"]["engine_id"], json!(engine.engine_ids()[1]));
    assert!(
        before["0"]["worker_addr"]["0"]["0"].as_str().is_some_and(|at| at.starts_with("tcp://127.0.0.1:"))
    );
    let names: Vec<String> = engine.labels().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["bootstrap_address", "kv_lease_s", "engine_id", "engine_id_dp1"]);
    engine.restart().await?;
    assert_ne!(query().await?["0"]["engine_id"], before["0"]["engine_id"]);
    assert_eq!(bootstrap.get("/other").await?.status, 404);
    engine.kill().await;
    assert!(bootstrap.get("/query").await.is_err());
    assert!(Engine::decode().connector(Connector::Mooncake).start().await?.bootstrap_address().is_none());
    Ok(())
}

#[tokio::test]
async fn the_others_role_kills_an_engine() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::Mooncake)).await?;
    fleet.expect_violations();
    fleet.expect_deaths(2);
    let params = told(&fleet.prefill[0], "a")?;
    dies(&fleet.prefill[0], &handed(&story(1), &params)).await?;
    dies(&fleet.decode[0], &prefill_leg(&story(1), &asked("a"))).await
}

#[tokio::test]
async fn a_missing_key_parks_decode_for_good() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::Mooncake)).await?;
    let params = told(&fleet.prefill[0], "a")?;
    for key in ["transfer_id", "remote_bootstrap_addr", "remote_engine_id"] {
        hangs(&fleet.decode[0], key, &handed(&story(1), &without(&params, key))).await?;
    }
    let leaked = fleet.decode[0].leaked_blocks();
    assert!(leaked > 0);
    fleet.expect_leaked(leaked);
    Ok(())
}

#[tokio::test]
async fn an_engine_id_that_nobody_has_fails_the_load() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::Mooncake)).await?;
    let (from, to) = (&fleet.prefill[0], &fleet.decode[0]);
    prefill(&fleet, "a", 1).await?;
    let params = told(from, "a")?;
    let unknown = with(&params, "remote_engine_id", json!("another"));
    assert_eq!(ask(to, &handed(&story(1), &unknown)).await?.status, 500);
    text(to, &handed(&story(1), &params)).await?;
    from.restart().await?;
    prefill(&fleet, "b", 2).await?;
    // What decode has asked for once it believes for ever.
    let stale = with(&told(from, "b")?, "remote_engine_id", params["remote_engine_id"].clone());
    assert_eq!(ask(to, &handed(&story(2), &stale)).await?.status, 500);
    assert_eq!(to.counters().failed_loads, 2);
    fleet.expect_expired(0);
    let body = handed(&story(2), &told(&fleet.prefill[0], "b")?);
    assert_eq!(text(&fleet.decode[0], &body).await?, right(&fleet, &story(2)).await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_stop_at_prefill_keeps_decode_waiting_for_eight_minutes() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, paused(Connector::Mooncake)).await?;
    fleet.expect_violations();
    let from = &fleet.prefill[0];
    from.fault(Fault::finish_with_stop());
    ask(from, &without(&prefill_leg(&story(1), &asked("a")), "min_tokens")).await?.ok()?;
    assert_eq!(from.pinned(), 0);
    let began = tokio::time::Instant::now();
    assert_eq!(ask(&fleet.decode[0], &handed(&story(1), &told(from, "a")?)).await?.status, 500);
    let seconds = began.elapsed().as_secs_f64() * 100.0;
    assert!((480.0..482.0).contains(&seconds), "{seconds}");
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn prefill_keeps_its_blocks_for_eight_minutes() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, paused(Connector::Mooncake)).await?;
    let began = tokio::time::Instant::now();
    prefill(&fleet, "a", 1).await?;
    eventually("they are freed", || fleet.prefill[0].pinned() == 0).await?;
    let seconds = began.elapsed().as_secs_f64() * 100.0;
    assert!((480.0..482.0).contains(&seconds), "{seconds}");
    fleet.expect_expired(1);
    fleet.assert_quiescent().await;
    Ok(())
}
