//! `cargo xtask bench`: what the router adds to a request.
//!
//! The engines are simulated and take no time, so what is measured is the
//! router, two HTTP legs and the engines' own handling of HTTP. Figures of
//! different machines, or of a machine that does something else meanwhile,
//! can't be compared.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::deployment::Deployment;
use crate::http::Connection;
use crate::paths::{root, target};
use crate::run::{Stopwatch, cargo, run};
use crate::{asks_for_help, policies, setup, usage};

const HELP: &str = "\
Usage: cargo xtask bench [--seconds N] [--clients N] [--debug]

Streams small chats through the router to engines that take no time, and
prints latency and throughput for several chains of policies.

  --seconds N   how long each chain is measured [default: 10]
  --clients N   requests at a time [default: 8]
  --debug       measure debug builds: figures mean nothing, but it starts soon";

const CHAT: &str =
    r#"{"model": "sim", "stream": true, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}"#;
const CHAINS: [(&str, &[&str]); 3] = [
    ("router, built-in policy", &[]),
    ("router, round_robin.wasm", &["--policy", "round_robin.wasm"]),
    ("router, cache_aware.wasm", &["--policy", "cache_aware.wasm"]),
];

struct Settings {
    seconds: u64,
    clients: u64,
    debug: bool,
}

pub(crate) fn main(arguments: &[String]) -> Result<ExitCode> {
    if let Some(code) = asks_for_help(arguments, HELP) {
        return Ok(code);
    }
    let mut settings = Settings { seconds: 10, clients: 8, debug: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let number = match argument.as_str() {
            "--seconds" => &mut settings.seconds,
            "--clients" => &mut settings.clients,
            "--debug" => {
                settings.debug = true;
                continue;
            }
            unknown => return Ok(usage(&format!("unknown argument `{unknown}`"), HELP)),
        };
        match arguments.next().and_then(|value| value.parse().ok()).filter(|value| (1..=1000).contains(value))
        {
            Some(value) => *number = value,
            None => return Ok(usage(&format!("{argument} needs a number from 1 to 1000"), HELP)),
        }
    }
    let Some(toolchain) = setup::toolchain()? else {
        return Ok(ExitCode::from(setup::NO_TOOLCHAIN));
    };
    policies::build(&toolchain, &["round_robin".to_owned(), "cache_aware".to_owned()])?;
    let mut build = cargo();
    build.args(["build", "--package", "edge-router", "--package", "edge-router-tests", "--bins"]);
    if !settings.debug {
        build.arg("--release");
    }
    run("building the router and the simulated engine", &mut build)?;
    measure(&settings)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(settings: &Settings) -> Result<()> {
    let binaries = target().join(if settings.debug { "debug" } else { "release" });
    let folder = root().join("policies");
    let folder = folder.to_str().context("the path of this repository is not UTF-8")?;
    println!("\n{:<28}{:>10}{:>10}{:>10}{:>14}", "", "p50 ms", "p90 ms", "p99 ms", "requests/s");
    for (index, (chain, policies)) in CHAINS.iter().enumerate() {
        let arguments: Vec<_> = ["--policies-dir", folder].iter().chain(*policies).copied().collect();
        let engine = ["--token-delay-ms", "0", "--prefill-ms-per-1k-tokens", "0"];
        let deployment = Deployment::start(&binaries, &engine, &arguments)?;
        if index == 0 {
            let decode = deployment.decode().next().context("there is no decode engine")?;
            measure_one("a decode engine, no router", decode, settings)?;
        }
        measure_one(chain, deployment.router(), settings)?;
    }
    Ok(())
}

/// Prints one line of the table.
fn measure_one(what: &str, address: &str, settings: &Settings) -> Result<()> {
    let duration = Duration::from_secs(settings.seconds);
    // Connections and caches are warm, as in a router that has been up.
    ask_again_and_again(address, duration / 10)?;
    let clients: Vec<_> = (0..settings.clients)
        .map(|_| {
            let address = address.to_owned();
            thread::spawn(move || ask_again_and_again(&address, duration))
        })
        .collect();
    let mut latencies = Vec::new();
    for client in clients {
        latencies.extend(client.join().ok().context("a client panicked")??);
    }
    latencies.sort_unstable();
    let percentile = |share: usize| {
        let latency = latencies.get(latencies.len() * share / 100).copied().unwrap_or_default();
        format!("{:.2}", latency.as_secs_f64() * 1000.0)
    };
    println!(
        "{what:<28}{:>10}{:>10}{:>10}{:>14.0}",
        percentile(50),
        percentile(90),
        percentile(99),
        latencies.len() as f64 / duration.as_secs_f64()
    );
    Ok(())
}

/// One client: how long each of its requests took.
fn ask_again_and_again(address: &str, duration: Duration) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(address)?;
    let all = Stopwatch::start();
    let mut latencies = Vec::new();
    while all.elapsed() < duration {
        let stopwatch = Stopwatch::start();
        let answer = connection.post("/v1/chat/completions", CHAT, |_| {})?;
        if answer.status != 200 {
            bail!("{address} answered {}: {}", answer.status, answer.body);
        }
        latencies.push(stopwatch.elapsed());
    }
    Ok(latencies)
}
