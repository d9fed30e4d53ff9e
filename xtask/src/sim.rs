//! `cargo xtask sim`: a simulated engine.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::run::cargo;

/// Builds and becomes the simulated engine, so that a signal to this process
/// reaches it; all arguments are its own.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode> {
    let mut sim = cargo();
    sim.args(["run", "--quiet", "--package", "edge-router-tests", "--bin", "sim-engine", "--"]);
    Err(sim.args(arguments).exec()).context("can't start cargo")
}
