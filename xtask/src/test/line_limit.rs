//! No source file is longer than one can keep in mind.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::paths::root;

const LIMIT: usize = 400;
const CHECKED: [&str; 6] = ["router", "policy-sdk", "policies", "tests", "examples", "xtask"];

pub(super) fn check() -> Result<()> {
    let mut too_long = Vec::new();
    for dir in CHECKED {
        visit(&root().join(dir), &mut too_long)?;
    }
    if too_long.is_empty() {
        return Ok(());
    }
    bail!("more than {LIMIT} lines:\n{}", too_long.join("\n"));
}

fn visit(dir: &Path, too_long: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("can't list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                visit(&path, too_long)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let lines = fs::read_to_string(&path)?.lines().count();
            if lines > LIMIT {
                too_long.push(format!("{}: {lines}", path.strip_prefix(root()).unwrap_or(&path).display()));
            }
        }
    }
    Ok(())
}
