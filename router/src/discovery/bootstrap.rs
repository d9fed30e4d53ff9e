//! Mooncake's engine ids, which a decode engine must be told to fetch a KV cache.
//!
//! Each prefill instance has a bootstrap server that knows the id of each of its data-parallel ranks
//! (`mooncake_connector.py`). Ids are drawn when an engine starts and are never announced: they are asked
//! for now and then, when an instance has become healthy, and when decode could not fetch a KV cache, which
//! may be because prefill has restarted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edge_router_policy::{Phase, Role};
use futures_util::future::join_all;
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::roster::KV_LEASE;
use super::{Roster, Source};
use crate::fleet::{Fleet, Instance, InstanceSpec, ask, parse_address};
use crate::upstream::{Pool, PoolSettings};

/// Names the bootstrap server of an instance, in the file or in what is found out here.
const LABEL: &str = "bootstrap_address";
/// Time between two questions, if nothing changes.
const PAUSE: Duration = Duration::from_secs(5);
/// Time between two questions, however often the fleet changes.
const BREATH: Duration = Duration::from_millis(250);
/// Time between two questions, however often the ids are doubted.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);
/// For one answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Ranks of one instance.
const MAX_RANKS: usize = 1024;

/// Seconds that Mooncake keeps a KV cache that nobody fetches (`VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`).
const LEASE: &str = "480";

/// Whether somebody has reason to think that engine ids are out of date.
#[derive(Debug, Default)]
pub(super) struct Doubt(Notify);

impl Doubt {
    /// Costs next to nothing, however often it happens.
    pub(super) fn raise(&self) {
        self.0.notify_one();
    }

    /// Waits for a doubt, and until the ids that were asked for at `asked` are a second old. A doubt that
    /// was raised before counts.
    async fn due(&self, asked: Instant) {
        self.0.notified().await;
        tracing::debug!("decode could not fetch a KV cache; asking for engine ids again");
        sleep_until(asked + DOUBT_PAUSE).await;
    }
}

/// What a bootstrap server says of one rank; the addresses of its workers are between engines.
#[derive(Debug, Deserialize)]
struct Rank {
    engine_id: String,
}

/// Asks for the ids of all prefill instances with a bootstrap server until the task is dropped. `given` are
/// the servers' addresses by those of their instances, for instances without the label.
pub(super) async fn watch(
    fleet: Arc<Fleet>,
    given: BTreeMap<String, String>,
    doubt: Arc<Doubt>,
    source: Source,
) {
    let mut changes = fleet.subscribe();
    let (mut known, mut said) = (BTreeMap::new(), Roster::default());
    loop {
        changes.mark_unchanged();
        let asked = Instant::now();
        let problem = refresh(&fleet, &given, &mut known).await;
        let roster = Roster::of_distinct(known.values().cloned().collect());
        if problem.is_none() || roster != said {
            source.announce(roster.clone());
            said = roster;
        }
        if let Some(problem) = problem {
            source.failed(problem);
        }
        sleep(BREATH).await;
        tokio::select! {
            () = sleep(PAUSE) => {}
            _ = changes.changed() => {}
            () = doubt.due(asked), if !known.is_empty() => {}
        }
    }
}

/// Asks all who can answer, at once; what is not answered stays as it was. Returns what went wrong, if
/// anything.
async fn refresh(
    fleet: &Fleet,
    given: &BTreeMap<String, String>,
    known: &mut BTreeMap<String, InstanceSpec>,
) -> Option<String> {
    let snapshot = fleet.snapshot();
    let servers: HashMap<&str, String> = snapshot
        .serving(Phase::Prefill)
        .filter_map(|instance| Some((instance.address(), server(instance, given)?)))
        .collect();
    known.retain(|address, _| servers.contains_key(address.as_str()));
    let healthy = snapshot.serving(Phase::Prefill).filter(|instance| instance.health().is_healthy());
    let asked = healthy.filter_map(|instance| Some((instance.address(), servers.get(instance.address())?)));
    let answers = asked.map(async |(address, server)| (address, describe(address, server).await));
    let mut problem = None;
    for (address, answer) in join_all(answers).await {
        match answer {
            Ok(spec) => drop(known.insert(address.to_owned(), spec)),
            Err(why) => problem = Some(format!("{address}: {why}")),
        }
    }
    problem
}

fn server(instance: &Instance, given: &BTreeMap<String, String>) -> Option<String> {
    let label = instance.spec().labels.iter().find(|(name, _)| name == LABEL).map(|(_, value)| value);
    label.or_else(|| given.get(instance.address())).cloned()
}

async fn describe(address: &str, server: &str) -> Result<InstanceSpec, String> {
    let pool = Pool::new(parse_address(server)?, PoolSettings::default());
    let (status, body) = ask(&pool, Method::GET, "/query", HeaderMap::new(), Bytes::new(), PATIENCE).await?;
    if status != StatusCode::OK {
        return Err(format!("{server} answers {status} to GET /query"));
    }
    parse(address, server, &body)
}

fn parse(address: &str, server: &str, body: &[u8]) -> Result<InstanceSpec, String> {
    let ranks: BTreeMap<usize, Rank> =
        serde_json::from_slice(body).map_err(|error| format!("{server}: GET /query: {error}"))?;
    if ranks.is_empty() || ranks.len() > MAX_RANKS || ranks.keys().copied().ne(0..ranks.len()) {
        return Err(format!(
            "{server} does not know all ranks: {:?}",
            ranks.keys().take(16).collect::<Vec<_>>()
        ));
    }
    let dp_size = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    let id = |(rank, known): (usize, Rank)| match rank {
        0 => ("engine_id".to_owned(), known.engine_id),
        _ => (format!("engine_id_dp{rank}"), known.engine_id),
    };
    let mut labels = vec![(LABEL.to_owned(), server.to_owned()), (KV_LEASE.to_owned(), LEASE.to_owned())];
    labels.extend(ranks.into_iter().map(id));
    Ok(InstanceSpec { dp_size, labels, ..InstanceSpec::new(Role::Prefill, address.to_owned()) })
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn each_rank_has_its_id() {
        let body = br#"{"1": {"engine_id": "b", "worker_addr": {"0": {"0": "tcp://a:1"}}}, "0": {"engine_id": "a"}}"#;
        let spec = parse("p:1", "p:8998", body).unwrap();
        let labels: Vec<_> = spec.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(labels, ["bootstrap_address=p:8998", "kv_lease_s=480", "engine_id=a", "engine_id_dp1=b"]);
        assert_eq!((spec.address.as_str(), spec.dp_size), ("p:1", 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubt_is_kept_until_the_ids_are_a_second_old() {
        let (doubt, asked) = (Doubt::default(), Instant::now());
        assert!(timeout(10 * PAUSE, doubt.due(asked)).await.is_err(), "nobody doubts");
        let asked = Instant::now();
        for _ in 0..1000 {
            doubt.raise();
        }
        doubt.due(asked).await;
        assert_eq!(asked.elapsed(), DOUBT_PAUSE);
        assert!(timeout(10 * PAUSE, doubt.due(asked)).await.is_err(), "it was one doubt");
        doubt.raise();
        let now = Instant::now();
        doubt.due(asked).await;
        assert_eq!(now.elapsed(), Duration::ZERO, "the ids are old enough");
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        for (body, said) in [
            ("", "GET /query"),
            ("{}", "does not know all ranks: []"),
            (r#"{"1": {"engine_id": "b"}}"#, "does not know all ranks: [1]"),
            (r#"{"x": {"engine_id": "b"}}"#, "GET /query"),
            (r#"{"0": {}}"#, "missing field `engine_id`"),
        ] {
            let why = parse("p:1", "p:8998", body.as_bytes()).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }
}
