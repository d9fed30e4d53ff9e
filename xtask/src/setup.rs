//! `cargo xtask setup`: what policies are built with.

use std::process::ExitCode;

use anyhow::Result;

use crate::toolchain::{self, Toolchain};
use crate::{asks_for_help, usage};

const HELP: &str = "\
Usage: cargo xtask setup

Finds what builds policies for wasm32-wasip2, in this order:
  1. the target, if the Rust toolchain has it
  2. `rustup target add`, unless RUSTUP_AUTO_INSTALL=0 forbids downloads
  3. Debian's compiler and library sources, from apt-get if this is root

Exits with 3 where none of them works. The router does: it has a built-in
policy, and runs components that were built elsewhere.";

/// Exit code where policies can't be built.
pub(crate) const NO_TOOLCHAIN: u8 = 3;

pub(crate) fn main(arguments: &[String]) -> Result<ExitCode> {
    if let Some(code) = asks_for_help(arguments, HELP) {
        return Ok(code);
    }
    if let Some(argument) = arguments.first() {
        return Ok(usage(&format!("unknown argument `{argument}`"), HELP));
    }
    Ok(toolchain()?.map_or(ExitCode::from(NO_TOOLCHAIN), |_| ExitCode::SUCCESS))
}

/// The toolchain for policies, installed if need be; `None` where there is
/// none, after saying so.
pub(crate) fn toolchain() -> Result<Option<Toolchain>> {
    let toolchain = Toolchain::find_or_install()?;
    match &toolchain {
        Some(toolchain) => println!("policies are built with {}", toolchain.describe()),
        None => eprintln!(
            "Policies can't be built here: no way to get the wasm32-wasip2 target works (see above).\n\
             To get it: `rustup target add wasm32-wasip2` with network access, or on Debian, as root,\n\
             `apt-get install {}`.\n\
             The router still runs, on its built-in policy or on components built elsewhere.",
            toolchain::DEBIAN_PACKAGES.join(" ")
        ),
    }
    Ok(toolchain)
}
