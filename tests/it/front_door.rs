//! What clients may ask for, and how they are told when they may not.

mod bodies;
mod protocols;

use anyhow::Result;
use bytes::Bytes;
use edge_router_tests::client::Client;
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use serde_json::json;

use crate::failures::assert_error;
use crate::load::{CHAT, COMPLETIONS, chat};

/// The paths of all requests, probes aside, that engines have seen.
fn asked(fleet: &Fleet) -> Vec<String> {
    let probes = ["/health", "/metrics"];
    let seen = fleet.prefill.iter().chain(&fleet.decode).flat_map(Engine::seen);
    seen.map(|request| request.path).filter(|path| !probes.contains(&path.as_str())).collect()
}

#[tokio::test]
async fn what_is_not_served_is_not_found() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    for path in [
        "/",
        "/v1",
        "/v1/nope",
        "/v1/chat/completions/x",
        "/V1/CHAT/COMPLETIONS",
        "//v1/models",
        "/v1/../sleep",
        "/%73leep",
        "/sleep",
        "/wake_up",
        "/pause",
        "/collective_rpc",
        "/server_info",
        "/abort_requests",
        "/inference/v1/abort_requests",
        "/invocations",
        "/scale_elastic_ep",
        "/load",
        "/openapi.json",
        "/sim/fault",
    ] {
        for method in ["GET", "POST"] {
            let body = (method == "POST").then(|| ("application/json", Bytes::from_static(b"{}")));
            let answer = router.client().request(method, path, body).await?.whole().await?;
            assert_error(&answer, 404, "not_found");
        }
    }
    assert_eq!(asked(&fleet), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_one() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let preflight = router
        .client()
        .header("origin", "https://example.org")
        .header("access-control-request-method", "POST");
    for (method, path, allow) in [
        ("OPTIONS", CHAT, "POST"),
        ("GET", CHAT, "POST"),
        ("PUT", COMPLETIONS, "POST"),
        ("DELETE", "/v1/embeddings", "POST"),
        ("PATCH", "/tokenize", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
        ("GET", "/instances/add", "POST"),
    ] {
        let answer = preflight.request(method, path, None).await?.whole().await?;
        assert_error(&answer, 405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
    assert_eq!(asked(&fleet), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_slash_at_the_end_and_a_query_make_no_difference() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    for path in [&format!("{CHAT}/"), &format!("{CHAT}?api-version=1"), &format!("{CHAT}/?a=b&c")] {
        let said = router.post_json(path, &chat(1)).await?.ok()?.transcript();
        assert_eq!(said.text(), fleet.baseline(CHAT, &chat(1)).await?.text());
    }
    assert_eq!(asked(&fleet), [CHAT; 6]);
    Ok(())
}

#[tokio::test]
async fn models_are_an_engines_and_head_is_get_without_a_body() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let get = router.get("/v1/models").await?.ok()?;
    assert_eq!(get.json()["data"][0]["id"], "sim");
    let head = router.client().request("HEAD", "/v1/models/", None).await?.whole().await?;
    assert_eq!((head.status, head.body.len()), (200, 0));
    for header in ["content-type", "content-length"] {
        assert_eq!(head.header(header), get.header(header));
    }
    Ok(())
}

#[tokio::test]
async fn other_endpoints_go_to_one_engine_and_come_back_as_they_are() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let direct = Client::new(&fleet.baseline.address());
    let text = json!({ "model": "sim", "prompt": "tell me", "input": "tell me" });
    let turns = json!({ "model": "sim", "max_tokens": 3, "messages": [{ "role": "user", "content": "hi" }] });
    for (path, body) in [
        ("/tokenize", &text),
        ("/detokenize", &json!({ "tokens": [300, 301] })),
        ("/v1/embeddings", &text),
        ("/v1/score", &text),
        ("/v1/responses", &text),
        ("/v1/messages/count_tokens", &turns),
    ] {
        let (through, straight) = (router.post_json(path, body).await?, direct.post_json(path, body).await?);
        assert_eq!((through.status, through.text()), (straight.status, straight.text()), "{path}");
        assert_eq!(through.header("content-type"), straight.header("content-type"), "{path}");
        let seen = fleet.prefill.iter().chain(&fleet.decode).flat_map(Engine::seen);
        let legs: Vec<_> = seen.filter(|request| request.path == path).collect();
        assert_eq!(legs.len(), 1, "{path}");
        assert_eq!(legs[0].json(), *body);
    }
    Ok(())
}

#[tokio::test]
async fn an_upload_reaches_an_engine_byte_for_byte() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let bytes: Vec<u8> = (0..50_000_u32).map(|n| (n * 7 % 256) as u8).collect();
    let kind = "multipart/form-data; boundary=xyz";
    router.client().post_bytes("/v1/audio/transcriptions", kind, bytes.clone()).await?;
    let seen = fleet.decode[0].seen();
    let upload = seen.iter().find(|request| request.path == "/v1/audio/transcriptions").expect("asked");
    assert_eq!((upload.header("content-type"), &*upload.body), (Some(kind), &*bytes));
    Ok(())
}

#[tokio::test]
async fn what_belongs_to_a_connection_is_not_passed_on() -> Result<()> {
    let fleet = Fleet::start(0, 1).await?;
    let router = fleet.router().start().await?;
    let odd = Fault::status(200)
        .body("text/plain", "hello")
        .header("connection", "keep-alive, x-drop")
        .header("x-drop", "1")
        .header("keep-alive", "timeout=5")
        .header("set-cookie", "a=1")
        .header("set-cookie", "b=2")
        .header("x-custom", "kept");
    fleet.decode[0].fault(odd.on_decode());
    let answer = router.post_json(CHAT, &chat(1)).await?.ok()?;
    assert_eq!(answer.text(), "hello");
    for gone in ["connection", "x-drop", "keep-alive"] {
        assert_eq!(answer.header(gone), None, "{gone}");
    }
    assert_eq!(answer.header("x-custom"), Some("kept"));
    Ok(())
}
