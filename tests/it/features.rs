//! Every feature of a request that two engines could get wrong (engine contract §9): which engines see it, what
//! prefill sees of it, and that the answer is the one that a single engine gives.

use anyhow::{Context, Result, ensure};
use edge_router_tests::client::{Answer, Client};
use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::Router;
use serde_json::{Value, json};

use crate::load::{CHAT, COMPLETIONS};

/// What is asked, which legs run, and what prefill must see (`-` for absent), if it is asked. The text fields are
/// merged into a short request; requests on one leg reach decode as they are.
const TABLE: &str = r#"
asked       | with                                                                  | legs | prefill sees
completions | {}                                                                    | 1+1  | max_tokens=1 stream=false
chat        | {}                                                                    | 1+1  | max_tokens=1 stream=false
completions | {"max_tokens": null}                                                  | 1+1  | max_tokens=1
chat        | {"max_tokens": 1}                                                     | 1+1  | max_tokens=1
completions | {"max_tokens": 0, "echo": true}                                       | 0+1  |
completions | {"max_tokens": 0}                                                     | 0+1  |
chat        | {"max_completion_tokens": 5}                                          | 1+1  | max_tokens=1 max_completion_tokens=1
chat        | {"max_completion_tokens": 3, "max_tokens": 9}                         | 1+1  | max_tokens=1 max_completion_tokens=1
completions | {"min_tokens": 4}                                                     | 1+1  | max_tokens=1 min_tokens=-
completions | {"min_tokens": 9}                                                     | 1+1  | min_tokens=-
completions | {"n": 2}                                                              | 0+1  |
chat        | {"n": 3}                                                              | 0+1  |
completions | {"best_of": 2}                                                        | 0+1  |
completions | {"prompt": ["one", "two"]}                                            | 0+1  |
completions | {"prompt": [[1, 2, 3], [4, 5]]}                                       | 0+1  |
completions | {"prompt": [11, 12, 13]}                                              | 1+1  | prompt=[11,12,13]
completions | {"prompt": ["only one"]}                                              | 1+1  | prompt=["only one"]
completions | {"echo": true}                                                        | 0+1  |
completions | {"echo": true, "logprobs": 1}                                         | 0+1  |
chat        | {"prompt_logprobs": 0}                                                | 0+1  |
completions | {"prompt_embeds": "AAAA"}                                             | 0+1  |
completions | {"use_beam_search": true}                                             | 0+1  |
completions | {"logprobs": 2}                                                       | 1+1  | logprobs=-
chat        | {"logprobs": true, "top_logprobs": 2}                                 | 1+1  | logprobs=- top_logprobs=-
completions | {"stream": true}                                                      | 1+1  | stream=false stream_options=-
chat        | {"stream": true, "stream_options": {"include_usage": true}}           | 1+1  | stream=false stream_options=-
completions | {"stream_options": {"include_usage": true}}                           | 1+1  | stream_options=-
chat        | {"response_format": {"type": "json_object"}}                          | 1+1  | response_format={"type":"json_object"}
chat        | {"tools": [{"type": "function", "function": {"name": "f"}}]}          | 1+1  | tools=[{"type":"function","function":{"name":"f"}}]
completions | {"stop": ["a", "e"]}                                                  | 1+1  | stop=-
completions | {"stop_token_ids": [7, 8]}                                            | 1+1  | stop_token_ids=-
completions | {"ignore_eos": true}                                                  | 1+1  | ignore_eos=true
completions | {"seed": 77, "temperature": 0.7, "presence_penalty": 1.5}             | 1+1  | seed=77
completions | {"logit_bias": {"5": -100}}                                           | 1+1  |
completions | {"cache_salt": "tenant-a", "priority": 3, "session_id": "s"}          | 1+1  | cache_salt="tenant-a" priority=3 session_id="s"
chat        | {"cache_salt": "tenant-b", "chat_template_kwargs": {"x": 1}}          | 1+1  | cache_salt="tenant-b" chat_template_kwargs={"x":1}
completions | {"truncate_prompt_tokens": 4}                                         | 1+1  | truncate_prompt_tokens=4
completions | {"kv_transfer_params": {"do_remote_prefill": true}}                   | 1+1  | kv_transfer_params.do_remote_prefill=false
completions | {"ec_transfer_params": {"x": 1}}                                      | 1+1  | ec_transfer_params=-
completions | {"field_of_tomorrow": 1.50}                                           | 1+1  | field_of_tomorrow=1.5
completions | {"model": "no-such-model"}                                            | 1+0  |
"#;

#[tokio::test]
async fn every_feature_runs_on_the_legs_that_it_may_run_on_and_answers_as_one_engine_does() -> Result<()> {
    let mut wrong = String::new();
    for row in TABLE.lines().filter(|line| !line.is_empty()).skip(1) {
        if let Err(error) = check(row).await {
            wrong.push_str(&format!("\n{row}\n{error:#}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    Ok(())
}

async fn check(row: &str) -> Result<()> {
    let columns: Vec<&str> = row.split('|').map(str::trim).collect();
    let [asked, with, legs, sees] = columns[..] else { anyhow::bail!("not four columns") };
    let (path, mut body) = match asked {
        "chat" => (CHAT, json!({ "messages": [{ "role": "user", "content": "say something of the wind" }] })),
        _ => (COMPLETIONS, json!({ "prompt": "say something of the sea" })),
    };
    body["model"] = json!("sim");
    body["max_tokens"] = json!(6);
    let with: Value = serde_json::from_str(with)?;
    body.as_object_mut().context("object")?.extend(with.as_object().context("object")?.clone());
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    same_answer(&fleet, &router, path, &body).await?;
    let seen = |engine: &Engine| engine.requests().iter().map(|request| request.json()).collect::<Vec<_>>();
    let (prefill, decode) = (seen(&fleet.prefill[0]), seen(&fleet.decode[0]));
    ensure!(
        format!("{}+{}", prefill.len(), decode.len()) == legs,
        "legs: {}+{}",
        prefill.len(),
        decode.len()
    );
    for expected in words(sees) {
        let (name, value) = expected.split_once('=').context("no '='")?;
        let found = name.split('.').try_fold(&prefill[0], |found, part| found.get(part));
        let expected = if value == "-" { None } else { Some(serde_json::from_str(value)?) };
        ensure!(found == expected.as_ref(), "prefill sees {name}={found:?}");
    }
    if let ([], [decode]) = (&prefill[..], &decode[..]) {
        ensure!(*decode == body, "decode sees {decode}");
    }
    fleet.quiescent().await
}

/// Status, texts, finish reasons, usage and log probabilities are those of one engine alone.
async fn same_answer(fleet: &Fleet, router: &Router, path: &str, body: &Value) -> Result<()> {
    let alone = Client::new(&fleet.baseline.address());
    if body["stream"] == json!(true) {
        let (ours, theirs) = (
            router.stream(path, body).await?.transcript().await?,
            alone.stream(path, body).await?.transcript().await?,
        );
        ensure!(ours.texts() == theirs.texts(), "{ours:?}, alone {theirs:?}");
        ensure!(ours.tokens("completion_tokens") == theirs.tokens("completion_tokens"));
        return Ok(());
    }
    // What no engine should be asked alone says the same here.
    let mut plain = body.clone();
    for private in ["kv_transfer_params", "ec_transfer_params"] {
        plain.as_object_mut().context("object")?.remove(private);
    }
    let (ours, theirs) = (router.post_json(path, body).await?, alone.post_json(path, &plain).await?);
    ensure!(
        ours.status == theirs.status,
        "{} {}, alone {} {}",
        ours.status,
        ours.text(),
        theirs.status,
        theirs.text()
    );
    ensure!(comparable(&ours) == comparable(&theirs), "{}, alone {}", ours.text(), theirs.text());
    Ok(())
}

/// Without what differs from request to request.
fn comparable(answer: &Answer) -> Value {
    let mut json = answer.json();
    for name in ["id", "created"] {
        if let Some(object) = json.as_object_mut() {
            object.remove(name);
        }
    }
    json
}

/// Words; a space within a string belongs to its word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let words = text.split(move |c: char| {
        quoted ^= c == '"';
        c == ' ' && !quoted
    });
    words.filter(|word| !word.is_empty())
}
