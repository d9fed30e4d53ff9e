//! `cargo xtask bench`.
use anyhow::Result;
use std::process::ExitCode;
pub(crate) fn main(_: &[String]) -> Result<ExitCode> {
    anyhow::bail!("not there yet")
}
