//! The router as users of the official `openai` package for Python see it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use edge_router_tests::engine::Fault;
use edge_router_tests::fleet::Fleet;
use serde_json::{Value, json};
use tokio::process::Command;

/// The interpreter with the package.
fn python() -> Result<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv/bin/python");
    let python = std::env::var_os("EDGE_ROUTER_TEST_PYTHON").map_or(installed, PathBuf::from);
    ensure!(python.exists(), "{} is missing: `cargo xtask test --only python` installs it", python.display());
    Ok(python)
}

/// What the client gets out of each of these actions.
async fn talk(url: &str, actions: &[&str]) -> Result<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/openai_client.py");
    let output =
        Command::new(python()?).arg(script).arg(url).args(actions).kill_on_drop(true).output().await?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "the script failed: {complaint}");
    serde_json::from_slice(&output.stdout).context(complaint)
}

#[tokio::test]
async fn it_gets_what_one_engine_alone_would_say() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().patient().policy("cache_aware.wasm").start().await?;
    let actions = [
        "whole_chat",
        "whole_completion",
        "streamed_chat",
        "streamed_completion",
        "models",
        "unknown_model",
        "bad_request",
    ];
    let (through, straight) =
        (talk(&router.url(), &actions).await?, talk(&fleet.baseline.url(), &actions).await?);
    assert_eq!(through, straight);
    assert_eq!(through["whole_chat"]["usage"]["completion_tokens"], 8);
    assert_eq!(through["whole_chat"], through["streamed_chat"]);
    assert_eq!(through["whole_completion"], through["streamed_completion"]);
    assert_eq!(through["models"], json!(["sim"]));
    assert_eq!(through["unknown_model"]["error"], "NotFoundError");
    assert_eq!(through["bad_request"]["error"], "BadRequestError");
    assert_eq!(fleet.decode[0].counters().remote_loads, 4);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn it_understands_the_routers_own_errors() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    fleet.decode[0].fault(Fault::close_before_headers().on_decode().always());
    let errors = talk(&router.url(), &["unknown_path", "whole_chat", "streamed_chat"]).await?;
    let error = &errors["unknown_path"];
    assert_eq!((&error["error"], &error["code"]), (&json!("NotFoundError"), &json!("not_found")), "{error}");
    for action in ["whole_chat", "streamed_chat"] {
        let error = &errors[action];
        assert_eq!(
            (&error["error"], &error["status"]),
            (&json!("InternalServerError"), &json!(502)),
            "{error}"
        );
        assert_eq!(error["code"], "engine_unreachable");
    }
    let legs = fleet.decode[0].requests().len();
    fleet.expect_pinned(legs);
    Ok(())
}

#[tokio::test]
async fn it_notices_a_stream_that_fails_or_breaks_off() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    fleet.decode[0].fault(Fault::error_after(2).on_path("/v1/chat/completions"));
    fleet.decode[0].fault(Fault::cut_after(3).on_path("/v1/completions"));
    let actions = ["streamed_chat", "streamed_completion"];
    let errors = talk(&router.url(), &actions).await?;
    for action in actions {
        assert_eq!(errors[action]["error"], "APIError", "{errors}");
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_that_it_closes_is_aborted() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    fleet.decode[0].fault(Fault::stall_after(2).on_decode());
    assert_eq!(talk(&router.url(), &["abandoned_stream"]).await?, json!({ "abandoned_stream": "closed" }));
    let aborted = || fleet.decode[0].requests()[0].aborted();
    edge_router_tests::patience::eventually("decode is aborted", aborted).await?;
    fleet.assert_quiescent().await;
    Ok(())
}
