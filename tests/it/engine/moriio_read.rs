//! MoRIIO, decode reads (engine contract §3.5).

use anyhow::{Context, Result};
use edge_router_tests::client::Client;
use edge_router_tests::engine::{Connector, Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Map, Value, json};

use super::{
    COMPLETIONS, ask, ask_as, dies, handed, hasty, paused, prefill_leg, right, story, text, with, without,
};

/// Where an engine announces to be, as the params of its peer name it.
pub(super) fn address(engine: &Engine) -> Result<Map<String, Value>> {
    let labels = engine.labels();
    let (_, zmq) = labels.iter().find(|(name, _)| name == "zmq_address").context("it announces itself")?;
    let ports: Vec<u16> = zmq.split(':').filter_map(|part| part.split(',').next()?.parse().ok()).collect();
    let [handshake, notify] = ports[..] else { anyhow::bail!("{zmq}") };
    let params = json!({
        "remote_host": "127.0.0.1", "remote_handshake_port": handshake, "remote_notify_port": notify.to_string(),
    });
    Ok(params.as_object().cloned().unwrap_or_default())
}

/// What prefill is asked with.
pub(super) fn asked(decode: &Engine, transfer: &str) -> Result<Value> {
    let mut params = json!({
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null, "remote_block_ids": null,
        "transfer_id": transfer, "remote_dp_size": decode.dp_size(), "remote_tp_size": 1,
    });
    params.as_object_mut().context("an object")?.extend(address(decode)?);
    Ok(params)
}

pub(super) async fn prefill(fleet: &Fleet, transfer: &str, number: usize) -> Result<Value> {
    let body = prefill_leg(&story(number), &asked(&fleet.decode[0], transfer)?);
    Ok(ask(&fleet.prefill[0], &body).await?.ok()?.json()["kv_transfer_params"].take())
}

#[tokio::test]
async fn decode_reads_and_releases() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioRead)).await?;
    let params = prefill(&fleet, "tx-1", 1).await?;
    let mut keys: Vec<&str> = params.as_object().context("params")?.keys().map(String::as_str).collect();
    keys.sort_unstable();
    let named = "do_remote_decode do_remote_prefill remote_block_ids remote_dp_rank remote_dp_rank_override \
                 remote_dp_size remote_dp_size_local remote_engine_id remote_handshake_port remote_host \
                 remote_notify_port remote_prefill_cached_tokens tp_size transfer_id";
    assert_eq!(keys.join(" "), named);
    assert_eq!(text(&fleet.decode[0], &handed(&story(1), &params)).await?, right(&fleet, &story(1)).await?);
    assert_eq!((fleet.prefill[0].counters().completed, fleet.decode[0].counters().remote_loads), (1, 1));
    Ok(())
}

#[tokio::test]
async fn the_request_id_may_name_the_peers() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioRead)).await?;
    let zmq = |engine: &Engine| engine.labels()[0].1.clone();
    let (p, d) = (zmq(&fleet.prefill[0]), zmq(&fleet.decode[0]));
    let id = format!("___prefill_addr_{p}___decode_addr_{d}_{:032x}", 77);
    let named = |params: Value| {
        let keys = ["remote_host", "remote_handshake_port", "remote_notify_port"];
        keys.iter().fold(params, |params, key| without(&params, key))
    };
    let body = prefill_leg(&story(1), &named(asked(&fleet.decode[0], "tx-1")?));
    let params =
        named(ask_as(&fleet.prefill[0], &id, &body).await?.ok()?.json()["kv_transfer_params"].take());
    let answer = ask_as(&fleet.decode[0], &id, &handed(&story(1), &params)).await?.ok()?;
    assert_eq!(answer.transcript().text(), right(&fleet, &story(1)).await?);
    Ok(())
}

#[tokio::test]
async fn a_first_token_that_ends_the_text_ends_the_handoff() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioRead)).await?;
    fleet.expect_violations();
    let from = &fleet.prefill[0];
    let mut body = prefill_leg(&story(1), &asked(&fleet.decode[0], "tx-1")?);
    from.fault(Fault::finish_with_stop());
    assert!(ask(from, &body).await?.json()["kv_transfer_params"].is_object(), "min_tokens forbids it");
    body = without(&body, "min_tokens");
    body["kv_transfer_params"]["transfer_id"] = json!("tx-2");
    from.fault(Fault::finish_with_stop());
    assert!(ask(from, &body).await?.json()["kv_transfer_params"].is_null());
    fleet.expect_expired(1);
    Ok(())
}

#[tokio::test]
async fn nothing_to_read_is_read_all_the_same() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioRead)).await?;
    fleet.expect_violations();
    let params = prefill(&fleet, "tx-1", 1).await?;
    for blocks in [json!(null), json!([]), json!([[]])] {
        let body = handed(&story(1), &with(&params, "remote_block_ids", blocks));
        assert_ne!(text(&fleet.decode[0], &body).await?, right(&fleet, &story(1)).await?);
        fleet.decode[0].restart().await?;
    }
    fleet.expect_expired(1);
    Ok(())
}

#[tokio::test]
async fn a_missing_key_or_address_kills_either_engine() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioRead)).await?;
    fleet.expect_violations();
    fleet.expect_deaths(8);
    let params = prefill(&fleet, "tx-1", 1).await?;
    let ask_for = asked(&fleet.decode[0], "tx-2")?;
    for key in ["transfer_id", "remote_engine_id", "remote_block_ids", "remote_notify_port"] {
        dies(&fleet.decode[0], &handed(&story(1), &without(&params, key))).await?;
        dies(&fleet.prefill[0], &prefill_leg(&story(1), &without(&ask_for, key))).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn prefill_reaps_what_is_not_released() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, paused(Connector::MoriioRead)).await?;
    let began = tokio::time::Instant::now();
    let stale = prefill(&fleet, "tx-1", 1).await?;
    eventually("the lease ends", || fleet.prefill[0].pinned() == 0).await?;
    let seconds = began.elapsed().as_secs_f64() * 100.0;
    assert!((60.0..63.0).contains(&seconds), "{seconds}");
    prefill(&fleet, "tx-2", 2).await?;
    let said = text(&fleet.decode[0], &handed(&story(1), &stale)).await?;
    assert_ne!(said, right(&fleet, &story(1)).await?, "the blocks are another prompt's by now");
    fleet.expect_expired(1);
    fleet.expect_late_reads(1);
    fleet.expect_pinned(1);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn decode_goes_to_the_rank_that_prefill_ran_on() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, |e| hasty(Connector::MoriioRead)(e).dp_size(2)).await?;
    let body = prefill_leg(&story(1), &asked(&fleet.decode[0], "tx-1")?);
    let client = Client::new(&fleet.prefill[0].address()).header("x-data-parallel-rank", "1");
    let params = client.post_json(COMPLETIONS, &body).await?.ok()?.json()["kv_transfer_params"].take();
    assert_eq!((&params["remote_dp_rank"], &params["remote_dp_size"]), (&json!(1), &json!(2)));
    let elsewhere = handed(&story(1), &with(&params, "remote_dp_rank", json!(0)));
    assert_ne!(text(&fleet.decode[0], &elsewhere).await?, right(&fleet, &story(1)).await?);
    fleet.decode[0].restart().await?;
    assert_eq!(text(&fleet.decode[0], &handed(&story(1), &params)).await?, right(&fleet, &story(1)).await?);
    fleet.expect_late_reads(1);
    Ok(())
}

#[tokio::test]
async fn a_peer_that_is_gone_fails_the_load() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, hasty(Connector::MoriioRead)).await?;
    let params = prefill(&fleet, "tx-1", 1).await?;
    fleet.prefill[0].kill().await;
    assert_eq!(ask(&fleet.decode[0], &handed(&story(1), &params)).await?.status, 500);
    assert_eq!(fleet.decode[0].counters().failed_loads, 1);
    Ok(())
}
