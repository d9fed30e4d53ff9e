//! Bodies: what is read, what is refused and why, and that what is passed on is the client's, byte for byte.

use anyhow::Result;
use edge_router_tests::client::Client;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::asked;
use crate::failures::assert_error;
use crate::load::{CHAT, COMPLETIONS, chat};

const ROUTES: [&str; 4] = [CHAT, COMPLETIONS, "/v1/embeddings", "/tokenize"];

/// A request in chunks, without a length.
fn chunked(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n\
         transfer-encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    for chunk in body.chunks(100_000) {
        request.extend(format!("{:x}\r\n", chunk.len()).bytes());
        request.extend(chunk);
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\n\r\n");
    request
}

#[tokio::test]
async fn what_is_no_json_object_is_refused_at_the_door() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let hostile = format!("{{\"messages\":{}", "[".repeat(100_000));
    let both_ends = format!("{{\"messages\":{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for path in ROUTES {
        for (body, code) in [
            ("", "invalid_json"),
            ("{", "invalid_json"),
            ("{\"a\":1,}", "invalid_json"),
            ("{} {}", "invalid_json"),
            ("not json", "invalid_json"),
            (&hostile, "invalid_json"),
            (&both_ends, "invalid_json"),
            ("[1]", "not_an_object"),
            ("\"text\"", "not_an_object"),
            ("null", "not_an_object"),
            ("7", "not_an_object"),
        ] {
            let answer = router.client().post_bytes(path, "application/json", body.to_owned()).await?;
            assert_error(&answer, 400, code);
        }
    }
    assert_eq!(asked(&fleet), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn nesting_that_no_engine_survives_does_the_router_no_harm() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    fleet.expect_violations();
    let router = fleet.router().patient().policy("cache_aware.wasm").start().await?;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let body = format!("{{\"model\":\"sim\",\"messages\":{deep}}}");
    let answer = router.client().post_bytes(CHAT, "application/json", body).await?;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(router.post_json(CHAT, &chat(1)).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn the_media_type_is_json_in_any_spelling_or_none() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let body = chat(1).to_string();
    for kind in ["application/json; charset=utf-8", "Application/JSON", ""] {
        let answer = router.client().post_bytes(CHAT, kind, body.clone()).await?;
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text());
        let seen = fleet.decode[0].requests().pop().expect("asked");
        let sent = if kind.is_empty() { "application/json" } else { kind };
        assert_eq!(seen.header("content-type"), Some(sent));
    }
    // Whether an engine takes this one is its business.
    router.client().post_bytes(CHAT, "application/vnd.api+json", body.clone()).await?;
    let seen = fleet.prefill[0].requests().pop().expect("asked");
    assert_eq!(seen.header("content-type"), Some("application/vnd.api+json"));
    let before = asked(&fleet).len();
    for path in ROUTES {
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
            let answer = router.client().post_bytes(path, kind, body.clone()).await?;
            assert_error(&answer, 415, "unsupported_media_type");
        }
    }
    assert_eq!(asked(&fleet).len(), before);
    Ok(())
}

#[tokio::test]
async fn compressed_bodies_are_refused_for_what_they_are() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    for coding in ["gzip", "deflate", "br", "gzip, gzip", "foo"] {
        let client = router.client().header("content-encoding", coding);
        for path in ROUTES {
            let answer = client.post_bytes(path, "application/json", vec![0x1f, 0x8b, 8, 0]).await?;
            assert_error(&answer, 415, "unsupported_encoding");
            assert!(answer.text().contains("identity"), "{}", answer.text());
        }
    }
    assert_eq!(asked(&fleet), Vec::<String>::new());
    let plain = router.client().header("content-encoding", "identity");
    plain.post_json(CHAT, &chat(1)).await?.ok()?;
    assert_eq!(fleet.decode[0].requests()[0].header("content-encoding"), None);
    Ok(())
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_in_either_framing() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().arg("--max-body-bytes").arg("4096").start().await?;
    let of = |length: usize| {
        let frame = json!({ "model": "sim", "prompt": "", "max_tokens": 2 }).to_string().len();
        json!({ "model": "sim", "prompt": "x".repeat(length - frame), "max_tokens": 2 }).to_string()
    };
    let tight = router.client().post_bytes(COMPLETIONS, "application/json", of(4096)).await?;
    assert_eq!(tight.status, 200, "{}", tight.text());
    assert_eq!(router.client().raw(&chunked(COMPLETIONS, of(4096).as_bytes())).await?.status, 200);
    let before = asked(&fleet).len();
    for answer in [
        router.client().post_bytes(COMPLETIONS, "application/json", of(4097)).await?,
        router.client().raw(&chunked(COMPLETIONS, of(4097).as_bytes())).await?,
        // Declared and never sent: the answer does not wait for it.
        router
            .client()
            .raw(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 99999999\r\n\r\n")
            .await?,
    ] {
        assert_error(&answer, 413, "body_too_large");
        assert!(answer.text().contains("4096"), "{}", answer.text());
    }
    assert_eq!(asked(&fleet).len(), before);
    Ok(())
}

#[tokio::test]
async fn half_a_body_reaches_no_engine() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let half = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"model\":";
    let mut tcp = TcpStream::connect(router.address()).await?;
    tcp.write_all(half.as_bytes()).await?;
    drop(tcp);
    let metrics = || async { anyhow::Ok(router.metrics().await?.sum("edge_router_requests_total", &[])) };
    while metrics().await? + router.metrics().await?.sum("edge_router_requests_cancelled_total", &[]) < 1.0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(asked(&fleet), Vec::<String>::new());
    Ok(())
}

/// What the legs may differ in from the client's body.
fn is_copy(leg: &[u8], client: &str) -> bool {
    let leg = std::str::from_utf8(leg).unwrap_or_default();
    leg.starts_with(client.strip_suffix('}').unwrap_or_default())
}

#[tokio::test]
async fn large_bodies_pass_byte_for_byte() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, |engine| engine.max_model_len(400_000).blocks(30_000)).await?;
    let router = fleet.router().patient().policy("cache_aware.wasm").start().await?;
    let image = |fill: &str| {
        let url = format!("data:image/png;base64,{}", fill.repeat((2_800 << 10) / fill.len()));
        json!({ "type": "image_url", "image_url": { "url": url } })
    };
    let content =
        json!([{ "type": "text", "text": "what is it?" }, image("AAAB"), image("iVBO"), image("Rw0K")]);
    let images =
        json!({ "max_tokens": 2, "messages": [{ "role": "user", "content": content }], "model": "sim" });
    let text = json!({ "max_tokens": 2, "messages": [{ "role": "user", "content": "sea ".repeat(75_000) }], "model": "sim" });
    for body in [images, text] {
        let body = body.to_string();
        assert!(body.len() > 300_000);
        let whole = router.client().post_bytes(CHAT, "application/json", body.clone()).await?;
        let pieces = router.client().raw(&chunked(CHAT, body.as_bytes())).await?;
        assert_eq!((whole.status, pieces.status), (200, 200), "{} {}", whole.text(), pieces.text());
        for decode in fleet.decode[0].requests().iter().rev().take(2) {
            assert!(is_copy(&decode.body, &body));
            assert!(decode.json()["kv_transfer_params"]["do_remote_prefill"].is_boolean());
        }
        for prefill in fleet.prefill[0].requests().iter().rev().take(2) {
            assert_eq!(prefill.json()["messages"], serde_json::from_str::<Value>(&body)?["messages"]);
        }
    }
    eventually("engines are idle", || fleet.decode[0].running() == 0).await?;
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn what_the_router_does_not_know_is_the_engines_to_judge() -> Result<()> {
    let user = |content: Value| json!([{ "role": "user", "content": content }]);
    let parts = json!([{ "type": "text", "text": "hi" }, { "type": "hologram", "x": null }]);
    let tool = json!([{ "type": "function", "function": { "name": "ping" } }]);
    for body in [
        json!({ "messages": user("hi".into()), "chat_template_kwargs": { "enable_thinking": false }, "x_vendor": [1, { "k": null }] }),
        json!({ "messages": user("hi".into()), "tools": tool }),
        json!({ "messages": user(Value::Null) }),
        json!({ "messages": user(parts) }),
        json!({ "messages": "hi" }),
        json!({ "messages": [], "max_tokens": -3 }),
        json!({ "messages": user("hi".into()), "temperature": "hot" }),
        json!({ "messages": user("hi".into()), "model": "another" }),
    ] {
        let fleet = Fleet::start(1, 1).await?;
        let router = fleet.router().start().await?;
        let mut body = body;
        body["max_completion_tokens"] = 3.into();
        body.as_object_mut().expect("object").entry("model").or_insert("sim".into());
        let through = router.post_json(CHAT, &body).await?;
        let straight = Client::new(&fleet.baseline.address()).post_json(CHAT, &body).await?;
        assert_eq!(through.status, straight.status, "{body}: {}", through.text());
        if straight.status == 200 {
            assert_eq!(through.transcript().text(), straight.transcript().text());
            let mut decode = fleet.decode[0].requests()[0].json();
            decode.as_object_mut().expect("object").remove("kv_transfer_params");
            assert_eq!(decode, body);
        } else {
            assert_eq!(through.text(), straight.text(), "{body}");
        }
    }
    Ok(())
}
