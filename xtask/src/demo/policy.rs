//! The policy that the demo edits: a copy of `examples/my_policy`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::paths::{root, target};
use crate::policies::build_crate;
use crate::toolchain::Toolchain;

pub(super) const COMPONENT: &str = "demo_policy.wasm";

/// The line that is edited, as it is and as it becomes.
pub(super) const FIRST: &str = "let least = roomy.min_by_key(|candidate| candidate.in_flight);";
pub(super) const SECOND: &str = "let least = roomy.min_by_key(|candidate| candidate.id);";

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Version {
    First,
    Second,
}

impl Version {
    /// As in the manifest of the crate; `/status` shows it.
    pub(super) fn number(self) -> &'static str {
        match self {
            Self::First => "0.1.0",
            Self::Second => "0.2.0",
        }
    }
}

/// Writes this version of the crate and builds it into the folder `to`.
pub(super) fn build(toolchain: &Toolchain, to: &Path, version: Version) -> Result<()> {
    let example = root().join("examples/my_policy");
    let copy = target().join("demo/demo_policy");
    fs::create_dir_all(copy.join("src"))?;

    let sdk = root().join("policy-sdk");
    let sdk = sdk.to_str().context("the path of this repository is not UTF-8")?;
    let manifest = read(&example.join("Cargo.toml"))?;
    let manifest = replaced(&manifest, "\"../../policy-sdk\"", &format!("{sdk:?}"))?;
    let manifest = replaced(&manifest, "name = \"my-policy\"", "name = \"demo-policy\"")?;
    let manifest = replaced(
        &manifest,
        &format!("version = \"{}\"", Version::First.number()),
        &format!("version = \"{}\"", version.number()),
    )?;
    fs::write(copy.join("Cargo.toml"), manifest)?;

    let code = read(&example.join("src/lib.rs"))?;
    let line = if version == Version::First { FIRST } else { SECOND };
    fs::write(copy.join("src/lib.rs"), replaced(&code, FIRST, line)?)?;
    build_crate(toolchain, &copy, to)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))
}

/// # Errors
///
/// When there is nothing to replace: the example has changed.
fn replaced(text: &str, from: &str, to: &str) -> Result<String> {
    if !text.contains(from) {
        bail!("examples/my_policy has no {from:?} any more");
    }
    Ok(text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edited_line_is_in_the_example() {
        let code = read(&root().join("examples/my_policy/src/lib.rs")).unwrap();
        assert!(replaced(&code, FIRST, SECOND).unwrap().contains(SECOND));
    }
}
