//! `cargo xtask demo`: the whole product in a minute, on this machine alone.
//!
//! Four simulated engines, a router, one streamed chat, and then a policy that
//! is edited, rebuilt and reloaded while requests run. What is shown is real
//! but for the engines, which have no model.

mod child;
mod http;
mod load;
mod policy;

use std::fs;
use std::io::{self, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::paths::{root, target};
use crate::run::{Stopwatch, cargo, run};
use crate::toolchain::Toolchain;
use crate::{asks_for_help, policies, setup, usage};
use child::Child;
use load::Load;

const HELP: &str = "\
Usage: cargo xtask demo [--keep]

Builds everything, starts two prefill and two decode engines (simulated) and a
router on free ports of this machine, streams a chat through it, and replaces a
policy while requests run. Takes a minute once everything is built.

  --keep   leave engines and router running until Ctrl-C";

/// How long a child may take to be ready; it is far quicker unless the machine
/// is overloaded.
const PATIENCE: Duration = Duration::from_secs(60);
const CHAT: &str = r#"{"model": "sim", "stream": true, "max_tokens": 24, "messages": [{"role": "user", "content": "Why are prefill and decode run apart?"}]}"#;

pub(crate) fn main(arguments: &[String]) -> Result<ExitCode> {
    if let Some(code) = asks_for_help(arguments, HELP) {
        return Ok(code);
    }
    if let Some(unknown) = arguments.iter().find(|argument| *argument != "--keep") {
        return Ok(usage(&format!("unknown argument `{unknown}`"), HELP));
    }
    let Some(toolchain) = setup::toolchain()? else {
        return Ok(ExitCode::from(setup::NO_TOOLCHAIN));
    };
    build(&toolchain)?;
    let demo = Demo::start(&toolchain)?;
    demo.stream_a_chat()?;
    demo.replace_the_policy(&toolchain)?;
    Demo::say_what_next();
    if !arguments.is_empty() {
        println!("\nStill running; Ctrl-C ends it.");
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn build(toolchain: &Toolchain) -> Result<()> {
    policies::build(toolchain, &["cache_aware".to_owned()])?;
    let mut build = cargo();
    build.args(["build", "--package", "edge-router", "--package", "edge-router-tests", "--bins"]);
    run("building the router and the simulated engine", &mut build)
}

struct Demo {
    /// Dropped first: it must not see its engines die.
    router: Child,
    router_address: String,
    _prefill: [Child; 2],
    decode: [Child; 2],
    /// Policies of the demo alone, so that those in the repository stay.
    policies: PathBuf,
}

impl Demo {
    fn start(toolchain: &Toolchain) -> Result<Self> {
        println!("\n== Two prefill and two decode engines, and a router");
        let policies = target().join("demo/policies");
        fs::create_dir_all(&policies)?;
        fs::copy(root().join("policies/cache_aware.wasm"), policies.join("cache_aware.wasm"))?;
        policy::build(toolchain, &policies, policy::Version::First)?;

        let prefill = [engine("prefill")?, engine("prefill")?];
        let decode = [engine("decode")?, engine("decode")?];
        let router_address = free_address()?;
        let folder = policies.to_str().context("the path of this repository is not UTF-8")?;
        let mut arguments = vec!["--listen", &router_address, "--policies-dir", folder];
        arguments.extend(["--policy", policy::COMPONENT, "--policy", "cache_aware.wasm"]);
        prefill.iter().for_each(|engine| arguments.extend(["--prefill", engine.address()]));
        decode.iter().for_each(|engine| arguments.extend(["--decode", engine.address()]));
        let router = Child::start("router", &target().join("debug/edge-router"), &arguments)?;
        let demo = Self { router, router_address, _prefill: prefill, decode, policies };
        demo.wait_until_ready()?;
        println!("router     http://{}", demo.router_address);
        Ok(demo)
    }

    fn wait_until_ready(&self) -> Result<()> {
        let stopwatch = Stopwatch::start();
        while !http::get(&self.router_address, "/readyz").is_ok_and(|answer| answer.status == 200) {
            if stopwatch.elapsed() > PATIENCE {
                bail!("the router did not get ready; it logged:\n{}", self.router.log());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn stream_a_chat(&self) -> Result<()> {
        println!(
            "\n== A chat, streamed: prefill computes the prompt, decode fetches the KV cache and answers"
        );
        println!(
            "curl -N http://{}/v1/chat/completions -H 'content-type: application/json' -d '{CHAT}'\n",
            self.router_address
        );
        let stopwatch = Stopwatch::start();
        let mut first = None;
        let answer = http::post_streamed(&self.router_address, "/v1/chat/completions", CHAT, |event| {
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
        let load = Load::start(&self.router_address);
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
        while !http::get(&self.router_address, "/status")?.body.contains(policy::Version::Second.number()) {
            if stopwatch.elapsed() > PATIENCE {
                bail!("the router did not reload the policy; it logged:\n{}", self.router.log());
            }
            thread::sleep(Duration::from_millis(10));
        }
        println!("loaded {} ms after the file was there", stopwatch.elapsed().as_millis());
        let counted = self.decode_counts()?;
        load.wait_for(200)?;
        self.show_shares(&counted)?;

        let done = load.stop();
        println!("\n{} requests ran meanwhile, {} failed", done.sent, done.failed);
        if done.failed > 0 {
            bail!("the first failure: {}", done.first_failure.unwrap_or_default());
        }
        Ok(())
    }

    /// Requests that each decode engine has finished.
    fn decode_counts(&self) -> Result<Vec<u64>> {
        self.decode
            .iter()
            .map(|engine| {
                let metrics = http::get(engine.address(), "/metrics")?.body;
                let finished = metrics.lines().filter(|line| line.starts_with("vllm:request_success_total"));
                let counts = finished.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
                Ok(counts.sum::<f64>() as u64)
            })
            .collect()
    }

    fn show_shares(&self, before: &[u64]) -> Result<()> {
        for (engine, (before, now)) in self.decode.iter().zip(before.iter().zip(self.decode_counts()?)) {
            println!("decode {}: {} requests", engine.address(), now.saturating_sub(*before));
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

fn engine(role: &str) -> Result<Child> {
    let arguments = ["--role", role, "--token-delay-ms", "20"];
    let mut engine = Child::start(role, &target().join("debug/sim-engine"), &arguments)?;
    engine.wait_for_address()?;
    println!("{role:<10} http://{}", engine.address());
    Ok(engine)
}

/// A free port of the loopback interface; free at least until now.
fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
