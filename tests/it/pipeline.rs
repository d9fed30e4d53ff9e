//! What goes over the wire on each leg, and what comes back to the client.

use anyhow::{Context, Result};
use edge_router_tests::client::Client;
use edge_router_tests::engine::{Engine, Fault};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};

use crate::load::{CHAT, COMPLETIONS};
use crate::render::GENERATE;

/// The only request that an engine has been asked to generate for.
fn only(engine: &Engine) -> edge_router_tests::engine::Request {
    let generating: Vec<_> =
        engine.requests().into_iter().filter(|r| r.generates() && r.method == "POST").collect();
    assert_eq!(generating.len(), 1, "{generating:#?}");
    generating.into_iter().next().expect("one")
}

fn without(mut body: Value, fields: &[&str]) -> Value {
    let object = body.as_object_mut().expect("object");
    fields.iter().for_each(|field| drop(object.remove(*field)));
    body
}

#[tokio::test]
async fn prefill_gets_a_cut_down_copy_and_decode_the_original_with_the_handle() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let body = json!({
        "model": "sim", "messages": [{ "role": "user", "content": "hi there" }], "max_completion_tokens": 5,
        "min_tokens": 3, "stream": true, "stream_options": { "include_usage": true }, "logprobs": true,
        "top_logprobs": 1, "stop": ["never"], "seed": 7, "x_vendor": [1, { "k": null }],
    });
    let said = router.stream(CHAT, &body).await?.transcript().await?;
    assert_eq!(said.text(), fleet.baseline(CHAT, &body).await?.text());
    assert_eq!((said.tokens("completion_tokens"), said.done), (Some(5), true));

    let prefill = only(&fleet.prefill[0]).json();
    let changed = ["max_tokens", "max_completion_tokens", "stream", "kv_transfer_params"];
    let dropped = ["min_tokens", "stream_options", "logprobs", "top_logprobs", "stop"];
    let untouched = without(without(body.clone(), &changed), &dropped);
    assert_eq!(without(prefill.clone(), &changed), untouched);
    assert_eq!(prefill["max_tokens"], 1);
    assert_eq!(prefill["max_completion_tokens"], 1);
    assert_eq!(prefill["stream"], false);
    assert_eq!(prefill["kv_transfer_params"]["do_remote_decode"], true);

    let decode = only(&fleet.decode[0]).json();
    assert_eq!(without(decode.clone(), &["kv_transfer_params"]), body);
    assert_eq!(decode["kv_transfer_params"]["do_remote_prefill"], true);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn bytes_that_no_edit_names_reach_both_engines_as_they_were() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    // The simulated engine reads no deeper; the scanner's own tests go further.
    let deep = format!("{}1{}", "{\"a\":".repeat(99), "}".repeat(99));
    let tail = format!(
        r#""temperature": 0.30000000000000004,"top_p":1.0, "x" :1e-7,"y":123456789012345678901234567890,"z":"\/ 😀","deep":{deep}"#
    );
    let text = format!(
        r#"{{"model":"sim",  "prompt":"a \u0041 b","seed":9007199254740993,{tail},"max_tokens":4}} "#
    );
    let answer = router.client().post_bytes(COMPLETIONS, "application/json", text.clone()).await?;
    assert_eq!(answer.status, 200, "{}", answer.text());

    let decode = only(&fleet.decode[0]).body;
    let decode = std::str::from_utf8(&decode)?;
    let (before, handle) = decode.split_once(r#","kv_transfer_params":"#).context("no handle")?;
    assert_eq!(Some(before), text.strip_suffix("} "));
    assert!(handle.ends_with("}} "), "{handle}");
    let prefill = only(&fleet.prefill[0]).body;
    let prefill = std::str::from_utf8(&prefill)?;
    assert!(
        prefill.starts_with(&format!(
            r#"{{"model":"sim",  "prompt":"a \u0041 b","seed":9007199254740993,{tail},"max_tokens":1"#
        )),
        "{prefill}"
    );
    Ok(())
}

#[tokio::test]
async fn every_limit_on_tokens_is_one_for_prefill_and_the_clients_for_decode() -> Result<()> {
    for (path, limits) in [
        (CHAT, json!({ "max_completion_tokens": 3 })),
        (CHAT, json!({ "max_completion_tokens": 3, "max_tokens": 2 })),
        (CHAT, json!({ "max_tokens": null, "max_completion_tokens": 4 })),
        (COMPLETIONS, json!({})),
        (COMPLETIONS, json!({ "max_tokens": null })),
        (COMPLETIONS, json!({ "max_tokens": 1 })),
        (COMPLETIONS, json!({ "max_tokens": 7, "min_tokens": 5 })),
    ] {
        let fleet = Fleet::start(1, 1).await?;
        let router = fleet.router().start().await?;
        let mut body = json!({ "model": "sim" });
        match path {
            CHAT => body["messages"] = json!([{ "role": "user", "content": "count" }]),
            _ => body["prompt"] = json!("count"),
        }
        body.as_object_mut().expect("object").extend(limits.as_object().expect("object").clone());
        let said = router.post_json(path, &body).await?.ok()?.transcript();
        let expected = fleet.baseline(path, &body).await?;
        assert_eq!((said.text(), &said.usage), (expected.text(), &expected.usage), "{limits}");
        let decode = without(only(&fleet.decode[0]).json(), &["kv_transfer_params"]);
        assert_eq!(decode, body);
        fleet.assert_quiescent().await;
    }
    Ok(())
}

#[tokio::test]
async fn what_two_legs_would_break_goes_to_decode_alone() -> Result<()> {
    let chat = |more: Value| (CHAT, json!({ "messages": [{ "role": "user", "content": "hello" }] }), more);
    let text = |more: Value| (COMPLETIONS, json!({ "prompt": "hello" }), more);
    for (path, base, more) in [
        chat(json!({ "n": 2 })),
        text(json!({ "n": 3 })),
        text(json!({ "prompt": ["one", "two"] })),
        text(json!({ "prompt": [[1, 2, 3], [4, 5]] })),
        text(json!({ "echo": true })),
        text(json!({ "prompt_logprobs": 1 })),
    ] {
        let fleet = Fleet::start(1, 1).await?;
        let router = fleet.router().start().await?;
        let mut body = base;
        body["model"] = json!("sim");
        body["max_tokens"] = json!(4);
        body.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        let answer = router.post_json(path, &body).await?;
        let direct = Client::new(&fleet.baseline.address()).post_json(path, &body).await?;
        assert_eq!(answer.status, direct.status, "{more}: {}", answer.text());
        assert_eq!(answer.transcript().texts(), direct.transcript().texts(), "{more}");
        assert!(fleet.prefill[0].requests().is_empty(), "{more}");
        assert_eq!(only(&fleet.decode[0]).json(), body);
        fleet.assert_quiescent().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_clients_transfer_params_reach_no_engine_on_any_path() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let evil = r#"{"do_remote_prefill":true,"remote_host":"203.0.113.9","remote_port":5600,"remote_engine_id":"evil","remote_block_ids":[1]}"#;
    for (path, fields) in [
        (COMPLETIONS, r#""prompt":"a","max_tokens":2"#),
        (COMPLETIONS, r#""prompt":"a","max_tokens":2,"n":2"#),
        ("/v1/embeddings", r#""input":"a""#),
        ("/tokenize", r#""prompt":"a""#),
    ] {
        for name in ["kv_transfer_params", r"kv\u005ftransfer_params", "ec_transfer_params"] {
            let body = format!(r#"{{"model":"sim","{name}":{evil},{fields},"kv_transfer_params":{evil}}}"#);
            let _ = router.client().post_bytes(path, "application/json", body).await?;
        }
    }
    // Engines take what further arguments hold for the request's own fields.
    let more = [
        (GENERATE, r#""token_ids":[1],"sampling_params":{"n":2,"extra_args":{"kv_transfer_params":EVIL}}"#),
        (
            GENERATE,
            r#""token_ids":[1],"sampling_params":{"extra\u005fargs":{"kv_transfer\u005fparams":EVIL}}"#,
        ),
        (COMPLETIONS, r#""prompt":"a","n":2,"vllm_xargs":{"kv_transfer_params":"evil"}"#),
        (CHAT, r#""messages":[],"vllm_xargs":{"ec_transfer_params":["evil"],"a":1}"#),
    ];
    for (path, fields) in more {
        let body = format!(r#"{{"model":"sim",{}}}"#, fields.replace("EVIL", evil));
        let _ = router.client().post_bytes(path, "application/json", body).await?;
    }
    for engine in fleet.prefill.iter().chain(&fleet.decode) {
        for seen in engine.seen() {
            let text = String::from_utf8_lossy(&seen.body).into_owned();
            assert!(!text.contains("evil") && !text.contains("203.0.113.9"), "{text}");
        }
    }
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn nothing_of_the_engines_inside_comes_back() -> Result<()> {
    let mut fleet = Fleet::start(0, 1).await?;
    fleet.expect_violations();
    let router = fleet.router().start().await?;
    let leak = json!({ "do_remote_decode": true, "remote_host": "10.1.2.3", "remote_block_ids": [[1]] });
    for stream in [false, true] {
        fleet.decode[0].fault(Fault::kv_params(leak.clone()).on_decode());
        let body = json!({ "model": "sim", "prompt": "hello", "max_tokens": 3, "stream": stream });
        let answer = router.stream(COMPLETIONS, &body).await?.whole().await?;
        assert_eq!(answer.status, 200);
        assert!(!answer.text().contains("10.1.2.3"), "{}", answer.text());
        assert!(!answer.text().contains("remote_block_ids"), "{}", answer.text());
    }
    Ok(())
}

#[tokio::test]
async fn ids_are_the_routers_on_the_legs_and_the_clients_in_the_answer() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let body = json!({ "model": "sim", "prompt": "hello", "max_tokens": 2 });
    let mut ids = Vec::new();
    for given in [Some("dup-1"), Some("dup-1"), None, Some(&*"x".repeat(10_000))] {
        let client = given.map_or(router.client(), |id| router.client().header("x-request-id", id));
        let answer = client.post_json(COMPLETIONS, &body).await?.ok()?;
        let echoed = answer.header("x-request-id").context("no id")?.to_owned();
        assert!(if given == Some("dup-1") { echoed == "dup-1" } else { echoed.len() == 32 }, "{echoed}");
    }
    for (p, d) in fleet.prefill[0].requests().iter().zip(fleet.decode[0].requests()) {
        let id = p.header("x-request-id").context("no id")?.to_owned();
        assert_eq!(d.header("x-request-id"), Some(&*id));
        assert!(id.len() == 32 && !ids.contains(&id), "{id}");
        ids.push(id);
    }
    assert_eq!(ids.len(), 4);
    Ok(())
}

#[tokio::test]
async fn headers_cross_as_they_should() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let client = router
        .client()
        .header("authorization", "Bearer client-abc")
        .header("connection", "x-secret")
        .header("x-secret", "1")
        .header("te", "trailers")
        .header("x-data-parallel-rank", "5")
        .header("traceparent", "00-1-2-01")
        .header("x-session-id", "s1");
    let body = json!({ "model": "sim", "prompt": "hello", "max_tokens": 2 });
    client.post_json(&format!("{COMPLETIONS}?api-version=1"), &body).await?.ok()?;
    for engine in [&fleet.prefill[0], &fleet.decode[0]] {
        let seen = only(engine);
        let head = |name| seen.header(name).map(str::to_owned);
        assert_eq!(head("authorization").as_deref(), Some("Bearer client-abc"));
        assert_eq!(head("traceparent").as_deref(), Some("00-1-2-01"));
        assert_eq!(head("x-session-id").as_deref(), Some("s1"));
        assert_eq!(head("host"), Some(engine.address()));
        assert_eq!(head("content-length"), Some(seen.body.len().to_string()));
        for gone in ["x-secret", "te", "x-data-parallel-rank", "transfer-encoding"] {
            assert_eq!(head(gone), None, "{gone}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn engines_with_a_key_never_see_the_clients() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, |engine| engine.api_key("eng-123")).await?;
    let router = fleet.router().arg("--engine-api-key").arg("eng-123").arg("-m").arg("sim").start().await?;
    let client = router.client().header("authorization", "Bearer client-abc");
    let body = json!({ "model": "sim", "prompt": "hello", "max_tokens": 2 });
    client.post_json(COMPLETIONS, &body).await?.ok()?;
    client.get("/v1/models").await?.ok()?;
    for engine in [&fleet.prefill[0], &fleet.decode[0]] {
        for seen in engine.seen() {
            assert!(!format!("{:?}", seen.headers).contains("client-abc"), "{seen:?}");
        }
    }
    assert!(!router.log().concat().contains("eng-123"));
    Ok(())
}

#[tokio::test]
async fn tokens_are_passed_on_one_by_one_and_bytes_as_they_are() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let body = json!({ "model": "sim", "prompt": "hello", "max_tokens": 4, "stream": true });
    let plain = router.stream(COMPLETIONS, &body).await?.whole().await?;
    assert!(plain.headers["content-type"].to_str()?.starts_with("text/event-stream"));
    assert!(plain.headers.get("content-length").is_none());
    for fault in [Fault::one_byte_writes(), Fault::reframe(7)] {
        fleet.decode[0].fault(fault.on_decode());
        let shaped = router.stream(COMPLETIONS, &body).await?.whole().await?;
        let text = |answer: &edge_router_tests::client::Answer| {
            answer.text().replace(|c: char| c.is_ascii_hexdigit(), "")
        };
        assert_eq!(text(&shaped), text(&plain));
    }
    fleet.decode[0].fault(Fault::stall_after(2).on_decode());
    let mut stream = router.stream(COMPLETIONS, &body).await?;
    assert!(stream.next_event().await?.is_some() && stream.next_event().await?.is_some());
    drop(stream);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_stops_both_legs_and_all_counts_come_back() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let body = json!({ "model": "sim", "prompt": "hello", "max_tokens": 40, "stream": true });
    // During prefill.
    fleet.prefill[0].fault(Fault::hang().on_prefill());
    let leaving =
        tokio::time::timeout(std::time::Duration::from_millis(200), router.stream(COMPLETIONS, &body));
    assert!(leaving.await.is_err());
    let prefill = &fleet.prefill[0];
    eventually("prefill is aborted", || {
        prefill.requests().last().is_some_and(edge_router_tests::engine::Request::aborted)
    })
    .await?;
    // During decode.
    fleet.decode[0].fault(Fault::stall_after(1).on_decode());
    let mut stream = router.stream(COMPLETIONS, &body).await?;
    assert!(stream.next_event().await?.is_some());
    drop(stream);
    let decode = &fleet.decode[0];
    eventually("decode is aborted", || {
        decode.requests().last().is_some_and(edge_router_tests::engine::Request::aborted)
    })
    .await?;
    fleet.assert_quiescent().await;
    // Between the legs: prefill has pinned its blocks and nobody will come for them.
    fleet.decode[0].fault(Fault::hang().on_decode());
    let leaving =
        tokio::time::timeout(std::time::Duration::from_millis(300), router.stream(COMPLETIONS, &body));
    assert!(leaving.await.is_err());
    fleet.expect_pinned(fleet.prefill[0].pinned());

    eventually("counts are zero", || router.log().len() < usize::MAX).await?;
    let metrics = loop {
        let metrics = router.metrics().await?;
        if metrics.sum("edge_router_requests_cancelled_total", &[]) >= 3.0 {
            break metrics;
        }
    };
    assert_eq!(metrics.sum("edge_router_instance_in_flight", &[]), 0.0);
    assert_eq!(metrics.sum("edge_router_instance_queued_tokens", &[]), 0.0);
    Ok(())
}

#[tokio::test]
async fn token_ids_run_on_two_legs_too() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let ids: Vec<u32> = (20..90).collect();
    for stream in [false, true] {
        let body = json!({
            "model": "sim", "token_ids": ids, "stream": stream,
            "sampling_params": { "max_tokens": 5, "min_tokens": 2, "temperature": 0.0, "logprobs": 1 },
        });
        let path = "/inference/v1/generate";
        let answer = router.stream(path, &body).await?.whole().await?;
        let direct = Client::new(&fleet.baseline.address()).stream(path, &body).await?.whole().await?;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let ids = |text: String| {
            text.split("token_ids\":")
                .skip(1)
                .map(|t| t.split(']').next().unwrap_or("").to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(answer.text()), ids(direct.text()));
        assert!(!ids(direct.text()).is_empty());
    }
    let prefill = fleet.prefill[0].requests();
    assert_eq!(prefill.len(), 2);
    assert_eq!(prefill[1].json()["sampling_params"], json!({ "max_tokens": 1, "temperature": 0.0 }));
    assert_eq!(fleet.decode[0].counters().remote_loads, 2);
    fleet.assert_quiescent().await;
    Ok(())
}
