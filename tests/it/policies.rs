//! Policies that are wrong, slow, hostile or dead: traffic flows, and the router says what happened.

use std::path::PathBuf;

use anyhow::Result;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use edge_router_tests::router::{Router, RouterBuilder};
use serde_json::json;

use crate::load::{CHAT, all_right, chat};

/// A policy that only the tests use, as `cargo xtask policies` builds it.
pub(crate) fn test_policy(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../target/test-policies")
        .join(name)
        .with_extension("wasm")
}

fn faulty(fleet: &Fleet, hook: &str, fault: &str, every: u32) -> RouterBuilder {
    let config = json!({ "hook": hook, "fault": fault, "every": every });
    fleet
        .router()
        .policy(&test_policy("faulty").display().to_string())
        .arg("--policy-config")
        .arg(&format!("faulty={config}"))
}

async fn faults(router: &Router, labels: &[&str]) -> Result<f64> {
    Ok(router.metrics().await?.sum("edge_router_policy_faults_total", labels))
}

/// Runs a load with the fault; every answer must be right, and the fault must have been counted.
async fn survives(hook: &str, fault: &str, every: u32, kind: &str) -> Result<()> {
    let fleet = Fleet::start(2, 2).await?;
    // Little memory, so that a bomb goes off before the deadline.
    let router = faulty(&fleet, hook, fault, every).arg("--policy-memory-mib").arg("8").start().await?;
    all_right(&fleet, &router, 60, 6).await?;
    let counted = faults(&router, &[&format!("kind=\"{kind}\"")]).await?;
    let metrics = router.metrics().await?;
    let all: Vec<_> = metrics.series().filter(|name| name.contains("faults")).collect();
    assert!(counted > 0.0, "{hook}/{fault}: no {kind} in {all:?}");
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_trap_in_any_hook_costs_no_request() -> Result<()> {
    for hook in ["schedule", "rewrite_prefill", "merge_kv_params"] {
        // Every call from the second on: the first is the loader's trial.
        survives(hook, "trap", 3, "trap").await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_endless_loop_in_any_hook_is_ended() -> Result<()> {
    for hook in ["schedule", "rewrite_prefill", "merge_kv_params"] {
        survives(hook, "loop", 7, "deadline").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_memory_bomb_in_any_hook_is_stopped() -> Result<()> {
    for hook in ["schedule", "rewrite_prefill", "merge_kv_params"] {
        survives(hook, "memory", 5, "trap").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_policy_that_sleeps_does_not_hold_a_worker_up() -> Result<()> {
    survives("schedule", "sleep", 3, "waited").await
}

#[tokio::test]
async fn endless_recursion_is_a_trap_like_any_other() -> Result<()> {
    survives("rewrite_prefill", "deep_recursion", 3, "trap").await
}

#[tokio::test]
async fn decisions_that_break_the_contract_are_not_carried_out() -> Result<()> {
    survives("schedule", "wrong_id", 2, "bad_decision").await?;
    for hook in ["rewrite_prefill", "merge_kv_params"] {
        survives(hook, "oversized_edits", 4, "trap").await?;
        survives(hook, "bad_edit_json", 2, "bad_decision").await?;
        survives(hook, "forbidden_header", 2, "bad_decision").await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_error_is_an_abstention_that_is_counted() -> Result<()> {
    survives("schedule", "error", 1, "error").await
}

#[tokio::test]
async fn a_policy_that_floods_the_log_is_cut_short() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let patient = faulty(&fleet, "schedule", "print_flood", 20).arg("--policy-deadline-ms").arg("5000");
    let router = patient.start().await?;
    all_right(&fleet, &router, 20, 2).await?;
    let lines = router.log().iter().filter(|line| line.contains("policy=\"faulty\"")).count();
    assert!((1..200).contains(&lines), "{lines} lines of the policy in the log");
    Ok(())
}

#[tokio::test]
async fn one_fault_does_not_poison_the_calls_after_it() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    // Two calls of the hook per request: the trial makes two, and the 50th of an instance traps.
    let router = faulty(&fleet, "schedule", "trap", 50).start().await?;
    all_right(&fleet, &router, 100, 1).await?;
    let traps = faults(&router, &["kind=\"trap\""]).await?;
    assert!((1.0..=4.0).contains(&traps), "{traps} traps in 200 calls");
    Ok(())
}

#[tokio::test]
async fn a_policy_that_always_fails_is_left_alone_for_a_while() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = faulty(&fleet, "instances_changed", "trap", 2).no_wait().start().await?;
    eventually("the router is ready", || router.log().iter().any(|l| l.contains(" ready"))).await?;
    for turn in 0..50 {
        assert_eq!(router.post_json(CHAT, &chat(turn * 2 + 1)).await?.status, 200);
    }
    Ok(())
}

#[tokio::test]
async fn what_can_not_be_loaded_is_named_and_the_router_does_not_start() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let core = b"\0asm\x01\0\0\0".to_vec();
    std::fs::write(dir.path().join("core.wasm"), core)?;
    std::fs::write(dir.path().join("text.wasm"), "hello")?;
    let refusal = async |builder: RouterBuilder| -> String {
        format!("{:#}", builder.start().await.err().expect("must not start"))
    };
    let in_dir = |name: &str| Router::builder().policies_dir(dir.path()).policy(name);
    let core = refusal(in_dir("core.wasm")).await;
    assert!(
        core.contains("core.wasm: is a core module, not a component; build it for the target wasm32-wasip2"),
        "{core}"
    );
    let text = refusal(in_dir("text")).await;
    assert!(text.contains("text.wasm: is not a WebAssembly component"), "{text}");
    let missing = refusal(in_dir("nope.wasm")).await;
    assert!(missing.contains("nope.wasm does not exist"), "{missing}");
    assert!(missing.contains("has core.wasm, text.wasm"), "{missing}");

    let fleet = Fleet::start(1, 1).await?;
    let refused = refusal(faulty(&fleet, "nonsense", "trap", 1)).await;
    assert!(
        refused.contains("refuses its configuration") && refused.contains("unknown variant `nonsense`"),
        "{refused}"
    );
    for (fault, said) in
        [("trap", "failed in schedule: it trapped"), ("loop", "failed in schedule: it ran past its deadline")]
    {
        let refused = refusal(faulty(&fleet, "schedule", fault, 1)).await;
        assert!(refused.contains(said), "{refused}");
    }
    Ok(())
}
