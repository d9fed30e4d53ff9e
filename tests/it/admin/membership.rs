//! Instances join and leave while requests run.

use anyhow::Result;
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::json;
use tokio::time::Duration;

use super::{KEY, add, becomes, operator};
use crate::load::{CHAT, all_right, all_right_during, chat};

#[tokio::test]
async fn instances_come_and_go_under_load() -> Result<()> {
    let fleet = Fleet::start(2, 2).await?;
    let router = fleet.router().env("ADMIN_API_KEY", KEY).policy("cache_aware.wasm").start().await?;
    let changes = async {
        for round in 0..4 {
            let (role, engine) = match round % 2 {
                0 => ("prefill", &fleet.prefill[round / 2]),
                _ => ("decode", &fleet.decode[round / 2]),
            };
            let named = json!({ "type": role, "instance": engine.address() });
            operator(&router).post_json("/instances/remove", &named).await?.ok()?;
            let asked = engine.requests().len();
            let others = if role == "prefill" { &fleet.prefill } else { &fleet.decode };
            let all = || others.iter().map(|other| other.requests().len()).sum::<usize>();
            let before = all();
            eventually("requests go on", || all() > before + 10).await?;
            // Those that had chosen it already still come.
            assert!(engine.requests().len() <= asked + 4, "{role} still gets requests");
            add(&router, role, &engine.address()).await?.ok()?;
            becomes(&router, &engine.address(), "healthy").await?;
        }
        Ok(())
    };
    all_right_during(&fleet, &router, changes).await?;
    assert_eq!(router.metrics().await?.sum("edge_router_retries_total", &[]), 0.0);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn what_runs_on_an_instance_that_leaves_ends_as_it_would_have() -> Result<()> {
    let fleet = Fleet::start_with(1, 2, |engine| engine.token_delay(Duration::from_millis(5))).await?;
    let router = fleet.router().env("ADMIN_API_KEY", KEY).start().await?;
    let mut long = chat(0);
    long["max_tokens"] = json!(300);
    let mut stream = router.stream(CHAT, &long).await?;
    assert!(stream.next_event().await?.is_some());
    let left = fleet.decode.iter().find(|decode| decode.running() > 0).expect("one is at it");
    let named = json!({ "instance": left.address() });
    operator(&router).post_json("/instances/remove", &named).await?.ok()?;
    let said = stream.transcript().await?;
    assert_eq!((said.text(), said.done), (fleet.baseline(CHAT, &long).await?.text(), true));
    let metrics = router.metrics().await?;
    assert!(!metrics.series().any(|series| series.contains(&left.address())), "it is still exposed");
    assert_eq!(metrics.sum("edge_router_instance_in_flight", &[]), 0.0);
    Ok(())
}

#[tokio::test]
async fn a_resting_instance_gets_nothing_until_it_is_resumed() -> Result<()> {
    let fleet = Fleet::start(1, 2).await?;
    let router = fleet.router().env("ADMIN_API_KEY", KEY).start().await?;
    let (resting, other) = (&fleet.decode[0], &fleet.decode[1]);
    let named = json!({ "instance": resting.address() });
    let answer = operator(&router).post_json("/instances/drain", &named).await?.ok()?;
    assert_eq!(answer.json()["in_flight"], 0);
    assert_eq!(becomes(&router, &resting.address(), "healthy").await?["draining"], true);
    all_right(&fleet, &router, 6, 2).await?;
    assert_eq!((resting.requests().len(), other.requests().len()), (0, 6));
    operator(&router).post_json("/instances/resume", &named).await?.ok()?;
    all_right(&fleet, &router, 6, 1).await?;
    assert!((1..6).contains(&resting.requests().len()));
    Ok(())
}

#[tokio::test]
async fn an_instance_changes_its_role() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let changing = Engine::both().start().await?;
    let router = fleet.router().prefill(&changing).env("ADMIN_API_KEY", KEY).start().await?;
    // A prefill runs on it meanwhile, and is finished and fetched.
    changing.fault(Fault::delay(Duration::from_millis(300)).on_prefill());
    let body = chat(1);
    let mut requests = Vec::new();
    for _ in 0..2 {
        let (client, body) = (router.client(), body.clone());
        requests.push(tokio::spawn(async move { client.post_json(CHAT, &body).await }));
    }
    eventually("prefill is at it", || !changing.requests().is_empty()).await?;
    let named = json!({ "type": "prefill", "instance": changing.address() });
    operator(&router).post_json("/instances/remove", &named).await?.ok()?;
    add(&router, "decode", &changing.address()).await?.ok()?;
    for request in requests {
        let answer = request.await??.ok()?;
        assert_eq!(answer.transcript().text(), fleet.baseline(CHAT, &body).await?.text());
    }
    becomes(&router, &changing.address(), "healthy").await?;
    let prefills = changing.counters().pinned;
    all_right(&fleet, &router, 8, 2).await?;
    assert_eq!(changing.counters().pinned, prefills, "it is asked for prefill still");
    assert!(changing.counters().remote_loads > 0);
    assert_eq!(router.status().await?["prefill_nodes"], json!([fleet.prefill[0].address()]));
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn one_address_may_serve_both_roles_and_give_one_up() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let both = Engine::both().start().await?;
    let router = fleet.router().env("ADMIN_API_KEY", KEY).start().await?;
    for role in ["prefill", "decode"] {
        add(&router, role, &both.address()).await?.ok()?;
    }
    assert_eq!(becomes(&router, &both.address(), "healthy").await?["role"], "both");
    all_right(&fleet, &router, 8, 2).await?;
    let named = json!({ "type": "decode", "instance": both.address() });
    operator(&router).post_json("/instances/remove", &named).await?.ok()?;
    let status = router.status().await?;
    assert_eq!(status["decode_nodes"], json!([fleet.decode[0].address()]));
    assert_eq!(status["prefill_nodes"], json!([fleet.prefill[0].address(), both.address()]));
    fleet.assert_quiescent().await;
    Ok(())
}
