//! The simulated engine answers as real ones did: every recorded request is sent again, and the answer compared.
//!
//! Compared are the status, the headers, and the shape of each body and event: keys, and the type under each key. The
//! text differs, as the simulated engine has a vocabulary of its own. The recordings are from vLLM 0.32.0.

mod fixture;
mod shape;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use edge_router_tests::client::{Answer, Client, Stream};
use edge_router_tests::engine::{Engine, EngineBuilder};
use edge_router_tests::prometheus::Samples;
use edge_router_tests::sse::EventBuffer;
use serde_json::Value;

use fixture::Fixture;
use shape::{shape, streams};

/// Error messages that quote what only the real tokeniser or Python would say.
const OWN_WORDS: [&str; 4] = ["err-bad-json", "err-json-array", "err-too-long-chat", "err-sum-too-long"];

#[tokio::test]
async fn every_recorded_exchange_repeats() -> Result<()> {
    let mut differences = Vec::new();
    for fixture in Fixture::all()? {
        if let Err(difference) = repeat(&fixture).await {
            differences.push(format!("{}: {difference:#}", fixture.name));
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    Ok(())
}

/// An engine with the settings of the recorded ones.
fn recorded(engine: EngineBuilder) -> EngineBuilder {
    engine.model("tiny").block_size(32).max_model_len(2048).without_auto_tools().lenient()
}

async fn repeat(fixture: &Fixture) -> Result<()> {
    let prefill = recorded(Engine::prefill()).start().await?;
    let decode = recorded(Engine::decode()).start().await?;
    let alone = recorded(Engine::both()).without_connector().start().await?;
    let mut body = fixture.body();
    if let Some(first) = fixture.prefill_of() {
        let answer = send(&first, &prefill, first.body()).await?.whole().await?;
        let mut json: Value = serde_json::from_slice(&body)?;
        json["kv_transfer_params"] = answer.json()["kv_transfer_params"].clone();
        body = json.to_string().into();
    }
    let engine = match fixture.name.split('-').next() {
        Some("p") => &prefill,
        Some("s") => &alone,
        Some("pd") if fixture.name.ends_with("1-prefill") => &prefill,
        _ => &decode,
    };
    let answer = send(fixture, engine, body).await?.whole().await?;
    compare(fixture, &answer)
}

async fn send(fixture: &Fixture, engine: &Engine, body: Bytes) -> Result<Stream> {
    let mut client = Client::new(&engine.address());
    for (name, value) in fixture.headers() {
        client = client.header(&name, &value);
    }
    client.request(&fixture.method(), &fixture.path(), Some(("", body))).await
}

fn compare(fixture: &Fixture, answer: &Answer) -> Result<()> {
    ensure!(answer.status == fixture.status()?, "status {}: {}", answer.status, answer.text());
    let mut names: Vec<String> = answer.headers.keys().map(ToString::to_string).collect();
    names.sort();
    ensure!(names == fixture.answer_header_names()?, "headers {names:?}");
    ensure!(
        answer.header("content-type") == fixture.answer_header("content-type")?.as_deref(),
        "content type"
    );
    match fixture.answer()?.as_str() {
        events if events.starts_with("data:") || events.starts_with("event:") => {
            compare_events(events, answer)
        }
        "" if answer.body.is_empty() => Ok(()),
        "" => bail!("a body: {}", answer.text()),
        metrics if metrics.contains("vllm:") => compare_metrics(metrics, &answer.text()),
        body => compare_json(fixture, &serde_json::from_str(body)?, &answer.json()),
    }
}

fn compare_json(fixture: &Fixture, recorded: &Value, answer: &Value) -> Result<()> {
    let (expected, found) = (shape(recorded), shape(answer));
    ensure!(expected == found, "expected {expected}\n  found {found}");
    if let (Some(expected), Some(found)) = (recorded.get("error"), answer.get("error")) {
        let own = OWN_WORDS.contains(&fixture.name.as_str());
        for key in ["message", "type", "param", "code"].iter().skip(usize::from(own)) {
            ensure!(
                own && *key == "param" || expected[key] == found[key],
                "{} instead of {}",
                found[key],
                expected[key]
            );
        }
    }
    Ok(())
}

fn compare_events(recorded: &str, answer: &Answer) -> Result<()> {
    let (expected, found) =
        (EventBuffer::default().push(recorded.as_bytes()), EventBuffer::default().push(&answer.body));
    let (expected, found) = (streams(&expected), streams(&found));
    ensure!(expected == found, "expected {expected:#?}\n  found {found:#?}");
    Ok(())
}

/// Real engines expose many more series; those that the simulated one has must be among them.
fn compare_metrics(recorded: &str, found: &str) -> Result<()> {
    let series = |text: &str| -> Vec<(String, Vec<String>)> {
        let samples = Samples::parse(text);
        let split = samples.series().map(|series| {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let keys = labels.trim_end_matches('}').split("\",").filter_map(|label| label.split_once('='));
            let mut keys: Vec<String> = keys.map(|(key, _)| key.to_owned()).collect();
            keys.sort();
            (name.to_owned(), keys)
        });
        split.collect()
    };
    let recorded = series(recorded);
    for (name, labels) in series(found) {
        let real =
            recorded.iter().find(|(real, _)| *real == name).with_context(|| format!("no real {name}"))?;
        let known = labels.iter().all(|label| real.1.contains(label));
        ensure!(known, "{name} has labels {labels:?}, really {:?}", real.1);
    }
    Ok(())
}
