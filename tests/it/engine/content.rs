//! KV caches that are found by the prompt (engine contract §1).

use anyhow::Result;
use edge_router_tests::engine::{Connector, SharedStore};
use edge_router_tests::fleet::Fleet;
use serde_json::json;

use super::{ask, completion, hasty, right, story, text};

#[tokio::test]
async fn decode_finds_what_prefill_has_saved() -> Result<()> {
    let store = SharedStore::default();
    let fleet = Fleet::start_with(1, 1, hasty(Connector::Content(store.clone()))).await?;
    let body = json!({ "prompt": story(1), "max_tokens": 1 });
    assert!(ask(&fleet.prefill[0], &body).await?.ok()?.json()["kv_transfer_params"].is_null());
    assert!(!store.is_empty());
    assert_eq!(text(&fleet.decode[0], &completion(&story(1))).await?, right(&fleet, &story(1)).await?);
    let counters = fleet.decode[0].counters();
    assert_eq!((counters.remote_loads, counters.local_prefills), (1, 0));
    assert!(counters.prompt_tokens_computed < 16, "only the last block, which is not full");
    Ok(())
}

#[tokio::test]
async fn what_is_not_there_is_computed() -> Result<()> {
    let store = SharedStore::default();
    let fleet = Fleet::start_with(1, 1, hasty(Connector::Content(store.clone()))).await?;
    ask(&fleet.prefill[0], &json!({ "prompt": story(1), "max_tokens": 1 })).await?.ok()?;
    store.clear();
    assert_eq!(text(&fleet.decode[0], &completion(&story(1))).await?, right(&fleet, &story(1)).await?);
    assert_eq!((fleet.decode[0].counters().remote_loads, fleet.decode[0].counters().local_prefills), (0, 1));
    Ok(())
}
