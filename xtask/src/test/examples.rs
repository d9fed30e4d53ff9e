//! The examples that are policies outside the workspace: a newcomer's first
//! steps have to work.

use std::fs;

use anyhow::Result;

use crate::paths::{root, target};
use crate::policies::build_crate;
use crate::run::{cargo, run};

pub(super) fn check() -> Result<()> {
    let toolchain = super::toolchain()?;
    for entry in fs::read_dir(root().join("examples"))? {
        let dir = entry?.path();
        let Ok(manifest) = fs::read_to_string(dir.join("Cargo.toml")) else { continue };
        if !manifest.contains("edge-router-policy") {
            continue;
        }
        let mut test = cargo();
        test.current_dir(&dir).arg("test").arg("--target-dir").arg(target().join("examples"));
        run(&format!("testing {}", dir.display()), &mut test)?;
        build_crate(&toolchain, &dir, &target().join("test-policies"))?;
    }
    Ok(())
}
