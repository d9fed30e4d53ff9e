//! Project commands, run as `cargo xtask <command>`.
//!
//! Everything that takes more than one call of cargo is here, so that no shell
//! script and no make file is needed. It depends on nothing but anyhow: it is
//! built before anything else can be.

mod bench;
mod demo;
mod paths;
mod policies;
mod run;
mod setup;
mod sim;
mod test;
mod toolchain;

use std::env;
use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask <COMMAND> [OPTIONS]

  setup       Find or install what builds policies for wasm32-wasip2
  policies    Build policies/* to policies/<name>.wasm
  demo        Show a router with four simulated engines and a policy that is
              replaced while requests run
  sim         Run a simulated engine; what follows goes to it
  bench       Measure what the router costs
  test        Build and check everything, as CI does

`cargo xtask <COMMAND> --help` says more.";

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let done = match command.as_str() {
        "setup" => setup::main(&rest),
        "policies" => policies::main(&rest),
        "demo" => demo::main(&rest),
        "sim" => sim::main(&rest),
        "bench" => bench::main(&rest),
        "test" => test::main(&rest),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        "" => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
        unknown => {
            eprintln!("error: there is no command `{unknown}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints `help` and says how to exit, when `arguments` ask for help.
fn asks_for_help(arguments: &[String], help: &str) -> Option<ExitCode> {
    let asked = arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h"));
    asked.then(|| {
        println!("{help}");
        ExitCode::SUCCESS
    })
}

/// What to exit with after arguments that make no sense.
fn usage(problem: &str, help: &str) -> ExitCode {
    eprintln!("error: {problem}\n\n{help}");
    ExitCode::from(2)
}
