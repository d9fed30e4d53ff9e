//! `cargo xtask bench`: what the router costs, beside the same load without a router.
//!
//! Machines are noisy, so every round runs all targets in turn, and medians over the rounds are shown. The CPU seconds
//! are the router's own, of all its threads; what engines and load cost is not in them. Requests per second are bounded
//! by the simulated engines, which share the machine: compare them within a run only.

mod load;
mod target;

use anyhow::Result;
use clap::Parser;
use edge_router_tests::fleet::Fleet;

use load::{Load, Sample};
use target::Target;

/// Measures the router against simulated engines.
#[derive(Debug, Parser)]
#[command(name = "router-bench")]
struct Options {
    /// Requests of one target in one round
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// Requests at once
    #[arg(long, default_value_t = 16)]
    at_once: usize,
    /// Rounds over all targets
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Prefill instances, and as many decode instances
    #[arg(long, default_value_t = 2)]
    pairs: usize,
    /// Only loads whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let fleet = Fleet::start(options.pairs, options.pairs).await?;
    let mut targets = vec![
        Target::engine(&fleet),
        Target::two_legs(&fleet),
        Target::router(&fleet, "router, built-in policy", &[]).await?,
        Target::router(&fleet, "router, round_robin.wasm", &["round_robin.wasm"]).await?,
        Target::router(&fleet, "router, cache_aware.wasm", &["cache_aware.wasm"]).await?,
        Target::router(
            &fleet,
            "router, four policies",
            &["session_affinity.wasm", "cache_aware.wasm", "least_loaded.wasm", "round_robin.wasm"],
        )
        .await?,
    ];
    for load in Load::all().into_iter().filter(|load| load.name.contains(&options.only)) {
        println!(
            "\n{} ({} requests, {} at once, {} rounds)",
            load.name, options.requests, options.at_once, options.rounds
        );
        measure(&load, &mut targets, &options).await?;
    }
    Ok(())
}

async fn measure(load: &Load, targets: &mut [Target], options: &Options) -> Result<()> {
    let mut samples: Vec<Vec<Sample>> = targets.iter().map(|_| Vec::new()).collect();
    // The first round fills caches and pools, and is not counted.
    for round in 0..=options.rounds {
        for turn in 0..targets.len() {
            let at = (turn + round) % targets.len();
            let sample = load.run(&targets[at], options.requests / load.weight, options.at_once).await?;
            if round > 0 {
                samples[at].push(sample);
            }
        }
    }
    println!("{:<28}{:>12}{:>16}{:>14}{:>12}", "", "requests/s", "CPU s per 1000", "p50 ms", "p99 ms");
    for (target, samples) in targets.iter().zip(samples) {
        let median = |of: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = samples.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let cpu = target.has_router().then(|| format!("{:.4}", median(|s| s.cpu_per_1000)));
        println!(
            "{:<28}{:>12.0}{:>16}{:>14.2}{:>12.2}",
            target.name,
            median(|s| s.per_second),
            cpu.unwrap_or_else(|| "-".into()),
            median(|s| s.p50_ms),
            median(|s| s.p99_ms),
        );
    }
    Ok(())
}
