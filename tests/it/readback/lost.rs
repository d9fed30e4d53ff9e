//! The next turn of a conversation: prefill reads what decode has kept of the last one.

use anyhow::Result;
use edge_router_tests::engine::{EngineBuilder, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use edge_router_tests::router::Router;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep, timeout};

use crate::load::{CHAT, COMPLETIONS};

async fn fleet() -> Result<(Fleet, Router)> {
    let fleet = Fleet::start_with(1, 1, EngineBuilder::bidirectional).await?;
    let instance = |role, address| {
        format!(
            "[[instance]]\nrole = \"{role}\"\naddress = \"{address}\"\nlabels = {{ bidirectional_kv_xfer = \"true\" }}\n"
        )
    };
    let toml =
        instance("prefill", fleet.prefill[0].address()) + &instance("decode", fleet.decode[0].address());
    let router = Router::builder().config_toml(&toml).patient().arg("--kv-readback").start().await?;
    Ok((fleet, router))
}

fn ask(prompt: &[u64]) -> Value {
    json!({ "model": "sim", "user": "ann", "prompt": prompt, "max_tokens": 12, "return_token_ids": true })
}

/// A turn, which must be right; the prompt with what was said, and a token more.
async fn turn(fleet: &Fleet, router: &Router, mut prompt: Vec<u64>) -> Result<Vec<u64>> {
    let answer = router.post_json(COMPLETIONS, &ask(&prompt)).await?.ok()?;
    let right = fleet.baseline(COMPLETIONS, &ask(&prompt)).await?;
    assert_eq!(answer.transcript().text(), right.text());
    let said = answer.json()["choices"][0]["token_ids"].clone();
    prompt.extend(said.as_array().into_iter().flatten().filter_map(Value::as_u64));
    prompt.push(700);
    Ok(prompt)
}

fn first() -> Vec<u64> {
    (300..400).collect()
}

async fn counted(router: &Router) -> Result<(f64, f64)> {
    let metrics = router.metrics().await?;
    let sum = |name| metrics.sum(name, &[]);
    Ok((sum("edge_router_readbacks_total"), sum("edge_router_orphaned_handles_total")))
}

/// A client asks, and leaves once prefill was asked for `path` more than `times`; the router has noticed.
async fn leave(fleet: &Fleet, router: &Router, path: &str, body: &Value, times: usize) -> Result<()> {
    let asked = || fleet.prefill[0].seen().iter().filter(|request| request.path == path).count();
    tokio::select! {
        _ = router.stream(if body["messages"].is_null() { COMPLETIONS } else { CHAT }, body) => panic!("it was answered"),
        waited = eventually("prefill is asked", || asked() > times) => waited?,
    }
    let noticed = async {
        while router.metrics().await?.sum("edge_router_requests_cancelled_total", &[]) < 1.0 {
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    };
    timeout(Duration::from_secs(20), noticed).await?
}

#[tokio::test]
async fn each_turn_reads_what_decode_kept_of_the_last_one() -> Result<()> {
    let (mut fleet, router) = fleet().await?;
    let mut prompt = first();
    for _ in 0..3 {
        prompt = turn(&fleet, &router, prompt).await?;
    }
    assert_eq!(counted(&router).await?, (2.0, 0.0));
    fleet.expect_readbacks(1);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_while_its_tokens_are_told_leaves_what_is_kept() -> Result<()> {
    let (mut fleet, router) = fleet().await?;
    let said = json!([{ "role": "user", "content": "Tell me of the sea." }]);
    let chat = json!({ "model": "sim", "user": "ann", "messages": said, "max_tokens": 40 });
    let answer = router.post_json(CHAT, &chat).await?.ok()?;
    assert!(!answer.text().contains("token_ids\":["), "nobody has asked for them: {}", answer.text());
    fleet.prefill[0].fault(Fault::hang().on_path("/tokenize"));
    leave(&fleet, &router, "/tokenize", &chat, 0).await?;
    assert_eq!(counted(&router).await?, (0.0, 0.0));
    // The same words are no next turn; that is seen of what is kept, which is given up then.
    router.post_json(CHAT, &chat).await?.ok()?;
    assert_eq!(counted(&router).await?, (0.0, 1.0));
    fleet.expect_readbacks(2);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn what_prefill_may_not_have_read_is_an_orphan() -> Result<()> {
    let (mut fleet, router) = fleet().await?;
    let prompt = turn(&fleet, &router, first()).await?;
    fleet.prefill[0].fault(Fault::hang().on_prefill());
    leave(&fleet, &router, COMPLETIONS, &ask(&prompt), 1).await?;
    assert_eq!(counted(&router).await?, (1.0, 1.0));
    let prompt = turn(&fleet, &router, prompt).await?;
    fleet.prefill[0].fault(Fault::status(400).on_prefill());
    let refused = router.post_json(COMPLETIONS, &ask(&prompt)).await?;
    assert_eq!((refused.status, counted(&router).await?), (400, (2.0, 2.0)));
    fleet.expect_readbacks(2);
    fleet.assert_quiescent().await;
    Ok(())
}
