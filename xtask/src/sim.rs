//! `cargo xtask sim`: a simulated engine.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::run::cargo;

/// Builds and runs the simulated engine; all arguments are its own.
pub(crate) fn main(arguments: &[String]) -> Result<ExitCode> {
    let status = cargo()
        .args(["run", "--quiet", "--package", "edge-router-tests", "--bin", "sim-engine", "--"])
        .args(arguments)
        .status()
        .context("can't start cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
