//! What became of a request, in the words of the table.

use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::prometheus::Samples;
use edge_router_tests::sse::Transcript;

/// What a client sees, as in the table.
pub(super) fn in_words(status: u16, said: &Transcript, broken: bool, baseline: &Transcript) -> String {
    let code = said.error.as_ref().map(|error| error["code"].to_string().replace('"', ""));
    match (status, code) {
        (200, None)
            if !broken && said.done && (said.text(), &said.usage) == (baseline.text(), &baseline.usage) =>
        {
            "baseline".to_owned()
        }
        (200, Some(code)) if baseline.text().starts_with(said.text()) && said.done != broken => {
            format!("200, then {code}{}", if broken { ", cut" } else { "" })
        }
        (400..=599, Some(code)) if !broken => format!("{status} {code}"),
        _ => format!("{status} {said:?}, broken: {broken}"),
    }
}

/// The row that would have been right: from what the client sees to the legs.
pub(super) fn observed(seen: &str, fleet: &Fleet, metrics: &Samples) -> Vec<String> {
    let sum = |name: &str, label: &str| metrics.sum(&format!("edge_router_{name}"), &[label]);
    let counted = |name: &str, key: &str, values: &[&str]| {
        let hit = |value: &&&str| sum(name, &format!("{key}=\"{value}\"")) > 0.0;
        let of = |value: &&str| times(value, sum(name, &format!("{key}=\"{value}\"")));
        listed(&values.iter().filter(hit).map(of).collect::<Vec<_>>())
    };
    let failed = ["prefill", "decode"].into_iter();
    // How often is not said: a probe may have found a dead engine as well.
    let failed = failed.filter(|role| sum("instance_failures", &format!("role=\"{role}\"")) > 0.0);
    let handles = [("released", "released_handles_total"), ("orphaned", "orphaned_handles_total")];
    let handles = handles.iter().filter(|(_, name)| sum(name, "") > 0.0);
    let kinds = ["no_prefill_instance", "prefill_failed", "no_handle", "bad_handle", "late_handle"];
    let pinned: usize = fleet.prefill.iter().map(Engine::pinned).sum();
    vec![
        seen.to_owned(),
        counted("retries_total", "leg", &["prefill", "decode"]),
        counted("fallbacks_total", "kind", &kinds),
        listed(&handles.map(|(word, name)| times(word, sum(name, ""))).collect::<Vec<_>>()),
        pinned.to_string(),
        if fleet.decode.iter().any(|engine| engine.leaked_blocks() > 0) { "leaks" } else { "-" }.to_owned(),
        listed(&failed.map(str::to_owned).collect::<Vec<_>>()),
        format!("{}+{}", legs(&fleet.prefill), legs(&fleet.decode)),
    ]
}

/// `word` if it is one, and how many if they are more.
fn times(word: &str, count: f64) -> String {
    if count == 1.0 { word.to_owned() } else { format!("{count} {word}") }
}

fn listed(words: &[String]) -> String {
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// Without the requests by which unused KV caches are given back.
fn legs(engines: &[Engine]) -> usize {
    engines.iter().flat_map(Engine::requests).filter(|request| request.json()["model"] == "sim").count()
}

/// How often decode has generated an answer to its end.
pub(super) fn generated(fleet: &Fleet) -> u64 {
    let ended = |engine: &Engine| engine.counters().finished_stop + engine.counters().finished_length;
    fleet.decode.iter().map(ended).sum()
}

/// Requests that have ended, one way or another.
pub(super) fn ended(metrics: &Samples) -> f64 {
    metrics.sum("edge_router_requests_total", &[]) + metrics.sum("edge_router_requests_cancelled_total", &[])
}
