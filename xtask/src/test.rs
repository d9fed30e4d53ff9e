//! `cargo xtask test`: everything that must hold before a change goes in, in
//! the order in which it fails fastest.

mod examples;
mod line_limit;
mod python;
mod suite;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::run::{Stopwatch, cargo, is_there, run};
use crate::toolchain::Toolchain;
use crate::{asks_for_help, policies, usage};

const HELP: &str = "\
Usage: cargo xtask test [--only STEP]... [--skip STEP]... [--list]

Builds and checks everything, as CI does, and stops at the first step that
fails.

  --only STEP   only this step
  --skip STEP   all but this step
  --list        list the steps";

struct Step {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<()>,
}

const STEPS: [Step; 13] = [
    Step { name: "setup", what: "find what builds policies", run: || toolchain().map(drop) },
    Step { name: "fmt", what: "the code is formatted", run: formatted },
    Step { name: "lines", what: "no file is too long", run: line_limit::check },
    Step { name: "deny", what: "licenses and sources of all dependencies", run: dependencies },
    Step { name: "policies", what: "policies become components", run: components },
    Step { name: "build", what: "the router and the simulated engine", run: binaries },
    Step { name: "clippy", what: "no warnings", run: lints },
    Step { name: "doc", what: "no dead links in the documentation", run: documentation },
    Step { name: "native", what: "the SDK and the policies, tested natively", run: native },
    Step { name: "examples", what: "policies outside the workspace", run: examples::check },
    Step { name: "python", what: "the openai client for the tests", run: python::install },
    Step { name: "demo", what: "the demo shows what it promises", run: demo },
    Step { name: "test", what: "all tests", run: suite::run_all },
];

pub(crate) fn main(arguments: &[String]) -> Result<ExitCode> {
    if let Some(code) = asks_for_help(arguments, HELP) {
        return Ok(code);
    }
    let (mut only, mut skipped) = (Vec::new(), Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let steps = match argument.as_str() {
            "--only" => &mut only,
            "--skip" => &mut skipped,
            "--list" => {
                STEPS.iter().for_each(|step| println!("{:<10}{}", step.name, step.what));
                return Ok(ExitCode::SUCCESS);
            }
            unknown => return Ok(usage(&format!("unknown argument `{unknown}`"), HELP)),
        };
        match arguments.next() {
            Some(name) if STEPS.iter().any(|step| step.name == name) => steps.push(name.as_str()),
            name => return Ok(usage(&format!("{argument} needs a step, see --list; got {name:?}"), HELP)),
        }
    }
    let chosen =
        |step: &&Step| (only.is_empty() || only.contains(&step.name)) && !skipped.contains(&step.name);
    Ok(run_steps(&STEPS.iter().filter(chosen).collect::<Vec<_>>()))
}

fn run_steps(steps: &[&Step]) -> ExitCode {
    let all = Stopwatch::start();
    for (index, step) in steps.iter().enumerate() {
        println!("\n[{}/{}] {}: {}", index + 1, steps.len(), step.name, step.what);
        let stopwatch = Stopwatch::start();
        if let Err(error) = (step.run)() {
            eprintln!("\n`{}` failed after {}: {error:#}", step.name, stopwatch.seconds());
            eprintln!("To run it alone: cargo xtask test --only {}", step.name);
            return ExitCode::FAILURE;
        }
        println!("[{}/{}] {}: passed in {}", index + 1, steps.len(), step.name, stopwatch.seconds());
    }
    println!("\nAll {} steps passed in {}.", steps.len(), all.seconds());
    ExitCode::SUCCESS
}

fn toolchain() -> Result<Toolchain> {
    match crate::setup::toolchain()? {
        Some(toolchain) => Ok(toolchain),
        None => bail!("without a toolchain for policies most of the rest can't be tested"),
    }
}

fn formatted() -> Result<()> {
    run("cargo fmt", cargo().args(["fmt", "--all", "--check"]))
}

fn dependencies() -> Result<()> {
    if !is_there("cargo-deny") {
        run("installing cargo-deny", cargo().args(["install", "cargo-deny", "--locked"]))?;
    }
    run("cargo deny", cargo().args(["deny", "check", "bans", "licenses", "sources"]))
}

fn components() -> Result<()> {
    policies::build(&toolchain()?, &[])
}

fn binaries() -> Result<()> {
    run("cargo build", cargo().args(["build", "-p", "edge-router", "-p", "edge-router-tests", "--bins"]))
}

fn lints() -> Result<()> {
    run("cargo clippy", cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn documentation() -> Result<()> {
    let mut doc = cargo();
    doc.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    run("cargo doc", &mut doc)
}

fn demo() -> Result<()> {
    run("cargo xtask demo", std::process::Command::new(std::env::current_exe()?).arg("demo"))
}

fn native() -> Result<()> {
    let mut test = cargo();
    test.args(["test", "--package", "edge-router-policy"]);
    for package in policies::packages()? {
        test.args(["--package", &package]);
    }
    suite::run_test(&mut test)
}
