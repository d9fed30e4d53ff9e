//! Python with the `openai` client, because users talk to the router with it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::paths::target;
use crate::run::run;

fn venv() -> PathBuf {
    target().join("venv")
}

/// The interpreter, if it has been installed.
pub(super) fn interpreter() -> Option<PathBuf> {
    let python = venv().join("bin/python");
    let import = Command::new(&python).args(["-c", "import openai"]).output();
    import.is_ok_and(|output| output.status.success()).then_some(python)
}

pub(super) fn install() -> Result<()> {
    if interpreter().is_some() {
        return Ok(());
    }
    run("making a virtual environment", Command::new("python3").args(["-m", "venv"]).arg(venv()))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "openai"];
    run("installing the openai client", Command::new(venv().join("bin/python")).args(pip))
}
