//! Sessions, and policies that are asked one after the other.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::json;

use super::{ask, latest_reason, shares, user};
use crate::load::CHAT;

const SESSIONS: usize = 12;

/// The engine of each session, which must be one and the same for all requests after number `from`.
fn homes(engines: &[Engine], from: &[usize]) -> Result<BTreeMap<String, String>> {
    let mut homes = BTreeMap::new();
    for (engine, from) in engines.iter().zip(from) {
        for request in &engine.requests()[*from..] {
            let session = request.header("x-session-id").unwrap_or_default().to_owned();
            let before = homes.insert(session.clone(), engine.address());
            ensure!(before.is_none_or(|before| before == engine.address()), "{session} is in two places");
        }
    }
    Ok(homes)
}

async fn all_sessions(router: &Router, rounds: usize) -> Result<()> {
    for round in 0..rounds {
        for session in 0..SESSIONS {
            let client = router.client().header("x-session-id", &format!("session {session}"));
            client.post_json(CHAT, &ask(&[user(&format!("round {round}"))])).await?.ok()?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn sessions_stay_and_only_those_of_an_instance_that_left_move() -> Result<()> {
    let fleet = Fleet::start(3, 3).await?;
    let router =
        fleet.router().patient().policy("session_affinity.wasm").env("ADMIN_API_KEY", "key").start().await?;
    all_sessions(&router, 3).await?;
    let prefill = homes(&fleet.prefill, &[0; 3])?;
    let decode = homes(&fleet.decode, &[0; 3])?;
    assert_eq!((prefill.len(), decode.len()), (SESSIONS, SESSIONS));

    let left = prefill["session 0"].clone();
    let named = json!({ "type": "prefill", "instance": left });
    router.client().header("x-api-key", "key").post_json("/instances/remove", &named).await?.ok()?;
    let (prefilled, decoded) = (shares(&fleet.prefill), shares(&fleet.decode));
    all_sessions(&router, 2).await?;
    let after = homes(&fleet.prefill, &prefilled)?;
    for (session, home) in &prefill {
        assert_eq!(after[session] != *home, *home == left, "{session} was at {home}");
    }
    assert_eq!(homes(&fleet.decode, &decoded)?, decode);
    Ok(())
}

#[tokio::test]
async fn a_session_is_known_by_any_of_the_configured_keys() -> Result<()> {
    let fleet = Fleet::start(4, 1).await?;
    let router = fleet
        .router()
        .patient()
        .policy("session_affinity.wasm")
        .arg("--session-key")
        .arg("header:x-tenant,field:metadata_id")
        .start()
        .await?;
    let mut by_field = ask(&[user("hello")]);
    by_field["metadata_id"] = json!("tenant 7");
    for _ in 0..4 {
        let by_header = router.client().header("x-tenant", "tenant 7");
        by_header.post_json(CHAT, &ask(&[user("hi")])).await?.ok()?;
        router.post_json(CHAT, &by_field).await?.ok()?;
    }
    let mut shares = shares(&fleet.prefill);
    shares.sort_unstable();
    assert_eq!(shares, [0, 0, 0, 8]);
    Ok(())
}

#[tokio::test]
async fn the_second_policy_decides_where_the_first_abstains() -> Result<()> {
    let fleet = Fleet::start(3, 2).await?;
    let router = fleet
        .router()
        .patient()
        .policy("session_affinity.wasm")
        .policy("cache_aware.wasm")
        .arg("--access-log")
        .start()
        .await?;
    let names: Vec<_> = router.status().await?["policies"]
        .as_array()
        .map(|all| all.iter().map(|policy| policy["name"].clone()).collect())
        .unwrap_or_default();
    assert_eq!(names, ["session_affinity", "cache_aware"]);

    let body = ask(&[user(&"The same beginning for all of them. ".repeat(20))]);
    for round in 1..4 {
        router.post_json(CHAT, &body).await?.ok()?;
        router.wait_for_log_times("prefill=", 2 * round - 1).await?;
        let reason = latest_reason(&router)?;
        assert!(reason.contains("(cache_aware: "), "{reason}");
        assert_eq!(reason.contains("cached"), round > 1, "{reason}");
        let client = router.client().header("x-session-id", "s");
        client.post_json(CHAT, &body).await?.ok()?;
        router.wait_for_log_times("prefill=", 2 * round).await?;
        let reason = latest_reason(&router)?;
        assert!(reason.contains("(session_affinity: the session's own)"), "{reason}");
    }
    Ok(())
}
