//! What is sent, and how it is timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::target::Target;

/// One kind of request.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    /// How many times as long as a tiny request it takes; so many fewer are sent.
    pub(crate) weight: usize,
    body: fn(usize) -> Value,
}

/// One target under one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) cpu_per_1000: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// Makes prompts differ over all targets and rounds, lest a cache answers.
static SERIAL: AtomicUsize = AtomicUsize::new(0);

impl Load {
    pub(crate) fn all() -> Vec<Self> {
        vec![
            Self {
                name: "tiny: a short prompt, one token",
                weight: 1,
                body: |n| json!({ "model": "sim", "prompt": format!("tiny prompt {n}"), "max_tokens": 1 }),
            },
            Self {
                name: "stream: a short prompt, 64 tokens streamed",
                weight: 8,
                body: |n| json!({ "model": "sim", "prompt": format!("streamed {n}"), "max_tokens": 64, "stream": true }),
            },
            Self {
                name: "long: 8 KiB of prompt, one token",
                weight: 8,
                body: |n| {
                    let text = format!("number {n} of a long prompt ").repeat(8192 / 28);
                    json!({ "model": "sim", "prompt": text, "max_tokens": 1 })
                },
            },
        ]
    }

    /// Sends `requests`, `at_once` at a time.
    pub(crate) async fn run(&self, target: &Target, requests: usize, at_once: usize) -> Result<Sample> {
        let next = Arc::new(AtomicUsize::new(0));
        let mut workers = JoinSet::new();
        let (cpu, started) = (target.cpu_seconds()?, Instant::now());
        for worker in 0..at_once {
            let (mut line, next, body) = (target.connect(worker).await?, Arc::clone(&next), self.body);
            workers.spawn(async move {
                let mut took = Vec::new();
                while next.fetch_add(1, Ordering::Relaxed) < requests {
                    let body = body(SERIAL.fetch_add(1, Ordering::Relaxed));
                    let sent = Instant::now();
                    let answer = line.send("/v1/completions", &body).await?;
                    ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text());
                    took.push(sent.elapsed());
                }
                Ok(took)
            });
        }
        let mut took: Vec<Duration> = Vec::new();
        while let Some(worker) = workers.join_next().await {
            took.extend(worker??);
        }
        let (elapsed, cpu) = (started.elapsed().as_secs_f64(), target.cpu_seconds()? - cpu);
        took.sort_unstable();
        let percentile =
            |p: usize| took.get(took.len() * p / 100).map_or(f64::NAN, |d| d.as_secs_f64() * 1e3);
        let count = u32::try_from(took.len()).map_or(f64::NAN, f64::from);
        Ok(Sample {
            per_second: count / elapsed,
            cpu_per_1000: cpu * 1000.0 / count,
            p50_ms: percentile(50),
            p99_ms: percentile(99),
        })
    }
}
