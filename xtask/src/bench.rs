//! `cargo xtask bench`: builds with optimisation, then measures.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::paths::target;
use crate::run::{cargo, run};
use crate::{asks_for_help, policies};

const HELP: &str = "\
Usage: cargo xtask bench [--requests N] [--at-once N] [--rounds N] [--pairs N]
                         [--only LOAD]

Measures requests per second and CPU seconds per 1000 requests of the router
with and without WebAssembly policies, beside the same load sent to the
simulated engines directly, all in one run.";

pub(crate) fn main(arguments: &[String]) -> Result<ExitCode> {
    if let Some(code) = asks_for_help(arguments, HELP) {
        return Ok(code);
    }
    let Some(toolchain) = crate::setup::toolchain()? else {
        bail!("without policies there is nothing to compare")
    };
    policies::build(&toolchain, &[])?;
    let build = ["build", "--release", "-p", "edge-router", "-p", "edge-router-tests", "--bins"];
    run("building with optimisation (minutes at first)", cargo().args(build))?;
    let release = target().join("release");
    let mut bench = std::process::Command::new(release.join("router-bench"));
    bench.args(arguments).env("EDGE_ROUTER_BIN", release.join("edge-router"));
    run("measuring", &mut bench)?;
    Ok(ExitCode::SUCCESS)
}
