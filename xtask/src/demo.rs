//! `cargo xtask demo`: the whole product in a minute, on this machine alone.
//!
//! Four simulated engines, a router, one streamed chat, and then a policy that
//! is edited, rebuilt and reloaded while requests run. What is shown is real
//! but for the engines, which have no model.

mod child;
mod deployment;
mod http;
mod load;
mod policy;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::paths::{root, target};
use crate::run::{Stopwatch, cargo, run};
use crate::toolchain::Toolchain;
use crate::{asks_for_help, policies, setup, usage};
use deployment::Deployment;
use http::Connection;
use load::Load;

const HELP: &str = "\
Usage: cargo xtask demo [--keep]

Builds everything, starts two prefill and two decode engines (simulated) and a
router on free ports of this machine, streams a chat through it, and replaces a
policy while requests run. Takes a minute once everything is built. Where
policies can't be built it says so and shows the router on its built-in policy.

  --keep   leave engines and router running until Ctrl-C";

const CHAT: &str = r#"{"model": "sim", "stream": true, "max_tokens": 24, "messages": [{"role": "user", "content": "Why are prefill and decode run apart?"}]}"#;

pub(crate) fn main(arguments: &[String]) -> Result<ExitCode> {
    if let Some(code) = asks_for_help(arguments, HELP) {
        return Ok(code);
    }
    if let Some(unknown) = arguments.iter().find(|argument| *argument != "--keep") {
        return Ok(usage(&format!("unknown argument `{unknown}`"), HELP));
    }
    let toolchain = setup::toolchain()?;
    if toolchain.is_none() {
        println!("\nThe demo goes on without WebAssembly: the router's built-in policy decides.");
    }
    build(toolchain.as_ref())?;
    let demo = Demo::start(toolchain.as_ref())?;
    demo.stream_a_chat()?;
    match &toolchain {
        Some(toolchain) => demo.replace_the_policy(toolchain)?,
        None => demo.show_the_built_in_policy()?,
    }
    Demo::say_what_next();
    if !arguments.is_empty() {
        println!("\nStill running; Ctrl-C ends it.");
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn build(toolchain: Option<&Toolchain>) -> Result<()> {
    if let Some(toolchain) = toolchain {
        policies::build(toolchain, &["cache_aware".to_owned()])?;
    }
    let mut build = cargo();
    build.args(["build", "--package", "edge-router", "--package", "edge-router-tests", "--bins"]);
    run("building the router and the simulated engine", &mut build)
}

struct Demo {
    deployment: Deployment,
    /// Policies of the demo alone, so that those in the repository stay.
    policies: PathBuf,
}

impl Demo {
    fn start(toolchain: Option<&Toolchain>) -> Result<Self> {
        println!("\n== Two prefill and two decode engines, and a router");
        let policies = target().join("demo/policies");
        let mut chain = Vec::new();
        if let Some(toolchain) = toolchain {
            fs::create_dir_all(&policies)?;
            fs::copy(root().join("policies/cache_aware.wasm"), policies.join("cache_aware.wasm"))?;
            policy::build(toolchain, &policies, policy::Version::First)?;
            let folder = policies.to_str().context("the path of this repository is not UTF-8")?;
            chain.extend(["--policies-dir", folder, "--policy", policy::COMPONENT]);
            chain.extend(["--policy", "cache_aware.wasm"]);
        }
        let deployment = Deployment::start(&target().join("debug"), &["--token-delay-ms", "20"], &chain)?;
        deployment.show();
        Ok(Self { deployment, policies })
    }

    fn stream_a_chat(&self) -> Result<()> {
        println!(
            "\n== A chat, streamed: prefill computes the prompt, decode fetches the KV cache and answers"
        );
        println!(
            "curl -N http://{}/v1/chat/completions -H 'content-type: application/json' -d '{CHAT}'\n",
            self.deployment.router()
        );
        let stopwatch = Stopwatch::start();
        let mut first = None;
        let mut router = Connection::open(self.deployment.router())?;
        let answer = router.post("/v1/chat/completions", CHAT, |event| {
            if let Some(content) = http::string_field(event, "content").filter(|content| !content.is_empty())
            {
                first.get_or_insert_with(|| stopwatch.elapsed());
                print!("{content}");
                // What has come is shown, as a user would see it.
                let _ = io::stdout().flush();
            }
        })?;
        if answer.status != 200 {
            bail!("the router answered {}: {}", answer.status, answer.body);
        }
        let first = first.context("no token came")?;
        println!(
            "\n\nfirst token after {} ms, all after {} ms",
            first.as_millis(),
            stopwatch.elapsed().as_millis()
        );
        Ok(())
    }

    fn replace_the_policy(&self, toolchain: &Toolchain) -> Result<()> {
        println!("\n== A policy, replaced while requests run");
        println!("The first policy in the chain spreads decode by load:\n\n    {}\n", policy::FIRST);
        let load = Load::start(self.deployment.router());
        let counted = self.decode_counts()?;
        load.wait_for(200)?;
        self.show_shares(&counted)?;

        println!("\nNow every decode request shall go to the first instance. One line is edited, the");
        println!(
            "component rebuilt and put in place; the router goes on with the new one:\n\n    {}\n",
            policy::SECOND
        );
        policy::build(toolchain, &self.policies, policy::Version::Second)?;
        let stopwatch = Stopwatch::start();
        self.deployment.wait_for("using the new policy", || {
            let status = http::get(self.deployment.router(), "/status");
            status.is_ok_and(|status| status.body.contains(policy::Version::Second.number()))
        })?;
        println!("loaded {} ms after the file was there", stopwatch.elapsed().as_millis());
        let counted = self.decode_counts()?;
        load.wait_for(200)?;
        self.show_shares(&counted)?;

        end(load)
    }

    fn show_the_built_in_policy(&self) -> Result<()> {
        println!("\n== The built-in policy, while requests run: instances take turns");
        let load = Load::start(self.deployment.router());
        let counted = self.decode_counts()?;
        load.wait_for(200)?;
        self.show_shares(&counted)?;
        end(load)?;
        println!("\nLeft out: a policy that is edited, rebuilt and reloaded meanwhile. That needs what the");
        println!("beginning of this output names; `cargo xtask setup` says it again.");
        Ok(())
    }

    /// Requests that each decode engine has finished.
    fn decode_counts(&self) -> Result<Vec<u64>> {
        self.deployment
            .decode()
            .map(|address| {
                let metrics = http::get(address, "/metrics")?.body;
                let finished = metrics.lines().filter(|line| line.starts_with("vllm:request_success_total"));
                let counts = finished.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
                Ok(counts.sum::<f64>() as u64)
            })
            .collect()
    }

    fn show_shares(&self, before: &[u64]) -> Result<()> {
        for (address, (before, now)) in self.deployment.decode().zip(before.iter().zip(self.decode_counts()?))
        {
            println!("decode {address}: {} requests", now.saturating_sub(*before));
        }
        Ok(())
    }

    fn say_what_next() {
        println!("\n== What next");
        println!("cargo xtask demo --keep        the same, left running: try it with any OpenAI client");
        println!("examples/my_policy/README.md   write a policy of your own");
        println!("policies/                      those that come with the router");
    }
}

/// Ends the load; an error if a request failed.
fn end(load: Load) -> Result<()> {
    let done = load.stop();
    println!("\n{} requests ran meanwhile, {} failed", done.sent, done.failed);
    if done.failed > 0 {
        bail!("the first failure: {}", done.first_failure.unwrap_or_default());
    }
    Ok(())
}
