//! NIXL push: decode registers its blocks, prefill writes into them (engine contract §4.3).

use anyhow::Result;
use edge_router_tests::engine::{Connector, Engine};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};

use super::{
    ask, ask_as, completion, cut_down, dies, handed, hangs, hasty, right, story, text, with, without,
};

/// What a router can tell decode before prefill has answered.
fn ahead(prefill: &Engine) -> Value {
    let labels = prefill.labels();
    let label = |name: &str| labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": label("engine_id"),
        "remote_host": "127.0.0.1", "remote_port": prefill.side_channel().port(), "tp_size": 1,
        "remote_request_id": "x",
    })
}

async fn prefill(fleet: &Fleet, id: &str, number: usize) -> Result<Value> {
    let answer = ask_as(&fleet.prefill[0], id, &cut_down(&story(number))).await?.ok()?;
    Ok(answer.json()["kv_transfer_params"].take())
}

async fn start() -> Result<Fleet> {
    Fleet::start_with(1, 1, |engine| engine.connector(Connector::NixlPush)).await
}

#[tokio::test]
async fn prefill_may_come_first() -> Result<()> {
    let fleet = start().await?;
    let params = prefill(&fleet, "one", 1).await?;
    assert_eq!(params["transfer_mode"], "push");
    assert!(params.get("remote_blocks_expiry_time").is_none(), "{params}");
    assert_eq!(fleet.prefill[0].pinned(), 1);
    // Block ids are not looked at.
    let body = handed(&story(1), &without(&params, "remote_block_ids"));
    let answer = ask_as(&fleet.decode[0], "one", &body).await?.ok()?;
    assert_eq!(answer.transcript().text(), right(&fleet, &story(1)).await?);
    // Prefill hears of it a moment after decode.
    fleet.assert_quiescent().await;
    let (from, to) = (fleet.prefill[0].counters(), fleet.decode[0].counters());
    assert_eq!((from.completed, to.remote_loads, to.prompt_tokens_computed), (1, 1, 0));
    Ok(())
}

#[tokio::test]
async fn decode_may_come_first() -> Result<()> {
    let fleet = start().await?;
    let body = handed(&story(1), &ahead(&fleet.prefill[0]));
    let second = async {
        eventually("decode waits", || fleet.decode[0].hanging() == 1).await?;
        prefill(&fleet, "one", 1).await
    };
    let (answer, _) = tokio::try_join!(ask_as(&fleet.decode[0], "one", &body), second)?;
    assert_eq!(answer.ok()?.transcript().text(), right(&fleet, &story(1)).await?);
    Ok(())
}

#[tokio::test]
async fn legs_that_differ_never_meet() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::NixlPush)).await?;
    let params = prefill(&fleet, "one", 1).await?;
    hangs(&fleet.decode[0], "two", &handed(&story(1), &params)).await?;
    let mut copies = handed(&story(1), &params);
    copies["n"] = json!(2);
    hangs(&fleet.decode[0], "one", &copies).await?;
    let leaked = fleet.decode[0].leaked_blocks();
    assert!(leaked > 0, "blocks are held when the client has gone");
    fleet.expect_leaked(leaked);
    fleet.expect_expired(1);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_write_that_comes_after_all_frees_what_was_given_up() -> Result<()> {
    let fleet = start().await?;
    hangs(&fleet.decode[0], "one", &handed(&story(1), &ahead(&fleet.prefill[0]))).await?;
    assert!(fleet.decode[0].leaked_blocks() > 0);
    prefill(&fleet, "one", 1).await?;
    fleet.assert_quiescent().await;
    assert_eq!(fleet.decode[0].counters().generation_tokens, 0);
    Ok(())
}

#[tokio::test]
async fn each_key_is_needed() -> Result<()> {
    let mut fleet = Fleet::start_with(1, 1, hasty(Connector::NixlPush)).await?;
    let params = ahead(&fleet.prefill[0]);
    for key in ["remote_engine_id", "remote_host", "remote_port", "tp_size", "remote_request_id"] {
        dies(&fleet.decode[0], &handed(&story(1), &without(&params, key))).await?;
    }
    fleet.expect_deaths(5);
    let other = with(&params, "remote_engine_id", json!("another"));
    assert_eq!(ask(&fleet.decode[0], &handed(&story(1), &other)).await?.status, 500);
    assert_eq!(text(&fleet.decode[0], &completion(&story(1))).await?, right(&fleet, &story(1)).await?);
    Ok(())
}

#[tokio::test]
async fn pull_and_push_refuse_each_other() -> Result<()> {
    let mut push = Fleet::start_with(1, 1, hasty(Connector::NixlPush)).await?;
    let mut pull = Fleet::start_with(1, 1, hasty(Connector::NixlPull)).await?;
    for (from, to) in [(&push, &pull), (&pull, &push)] {
        let params = prefill(from, "one", 1).await?;
        let answer = ask_as(&to.decode[0], "one", &handed(&story(1), &params)).await?;
        assert_eq!((answer.status, to.decode[0].counters().failed_loads), (500, 1));
    }
    push.expect_expired(1);
    pull.expect_expired(1);
    Ok(())
}
