//! `cargo xtask policies`: components out of the policy crates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::paths::{policies_target, root, target};
use crate::run::run;
use crate::toolchain::{TARGET, Toolchain};
use crate::{asks_for_help, setup, usage};

const HELP: &str = "\
Usage: cargo xtask policies [--only NAME]...
       cargo xtask policies --crate DIR

Builds every crate in policies/ to policies/<name>.wasm, and those for the
router's tests in tests/policies/ to target/test-policies/<name>.wasm. A
component is replaced in one step and only if it changed, so a running router
that watches the folder loads each new version once.

  --only NAME   only this one; NAME is the name of its folder
  --crate DIR   instead, build the policy crate in DIR, which may be outside
                the workspace, to policies/<name of the folder>.wasm";

pub(crate) fn main(arguments: &[String]) -> Result<ExitCode> {
    if let Some(code) = asks_for_help(arguments, HELP) {
        return Ok(code);
    }
    let mut only = Vec::new();
    let mut stand_alone = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--only", Some(name)) => only.push(name.clone()),
            ("--crate", Some(dir)) => stand_alone = Some(dir),
            (option @ ("--only" | "--crate"), None) => {
                return Ok(usage(&format!("{option} needs a value"), HELP));
            }
            _ => return Ok(usage(&format!("unknown argument `{argument}`"), HELP)),
        }
    }
    let Some(toolchain) = setup::toolchain()? else {
        return Ok(ExitCode::from(setup::NO_TOOLCHAIN));
    };
    match stand_alone {
        Some(dir) => build_crate(&toolchain, Path::new(dir), &root().join("policies"))?,
        None => build(&toolchain, &only)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the policy crate in `dir` to a component in the folder `to`.
pub(crate) fn build_crate(toolchain: &Toolchain, dir: &Path, to: &Path) -> Result<()> {
    let dir = dir.canonicalize().with_context(|| format!("there is no {}", dir.display()))?;
    let policy = Policy::at(&dir, to)?;
    let mut cargo = toolchain.cargo_build()?;
    cargo.current_dir(&dir).arg("--target-dir").arg(policies_target());
    run(&format!("building {}", policy.name), &mut cargo)?;
    policy.publish()
}

/// The packages of all policies.
pub(crate) fn packages() -> Result<Vec<String>> {
    Ok(all()?.into_iter().map(|policy| policy.package).collect())
}

fn all() -> Result<Vec<Policy>> {
    let mut policies = find(&root().join("policies"), &root().join("policies"))?;
    policies.extend(find(&root().join("tests/policies"), &target().join("test-policies"))?);
    Ok(policies)
}

/// Builds the policies of these names, or all.
pub(crate) fn build(toolchain: &Toolchain, only: &[String]) -> Result<()> {
    let mut policies = all()?;
    if let Some(unknown) = only.iter().find(|name| !policies.iter().any(|policy| policy.name == **name)) {
        let names: Vec<_> = policies.iter().map(|policy| policy.name.as_str()).collect();
        bail!("there is no policy `{unknown}`; there are {}", names.join(", "));
    }
    policies.retain(|policy| only.is_empty() || only.contains(&policy.name));

    let mut cargo = toolchain.cargo_build()?;
    cargo.arg("--target-dir").arg(policies_target());
    for policy in &policies {
        cargo.args(["--package", &policy.package]);
    }
    let names: Vec<_> = policies.iter().map(|policy| policy.name.as_str()).collect();
    run(&format!("building {}", names.join(", ")), &mut cargo)?;
    policies.iter().try_for_each(Policy::publish)
}

/// A crate that becomes a component.
struct Policy {
    /// Name of its folder.
    name: String,
    package: String,
    /// Where the component goes.
    component: PathBuf,
}

/// The crates in the folders of `dir`, whose components go to `to`.
fn find(dir: &Path, to: &Path) -> Result<Vec<Policy>> {
    let mut policies = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("can't list {}", dir.display()))? {
        let dir = entry?.path();
        if dir.join("Cargo.toml").exists() {
            policies.push(Policy::at(&dir, to)?);
        }
    }
    policies.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(policies)
}

/// The first `name = ".."` of a manifest, which is that of its package.
fn package_name(manifest: &Path) -> Result<String> {
    let text = fs::read_to_string(manifest).with_context(|| format!("can't read {}", manifest.display()))?;
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.map(str::to_owned).with_context(|| format!("{} names no package", manifest.display()))
}

impl Policy {
    /// The crate in `dir`, whose component goes to the folder `to`.
    fn at(dir: &Path, to: &Path) -> Result<Self> {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let component = to.join(&name).with_extension("wasm");
        Ok(Self { package: package_name(&dir.join("Cargo.toml"))?, name, component })
    }

    fn publish(&self) -> Result<()> {
        let built = policies_target()
            .join(TARGET)
            .join("release")
            .join(self.package.replace('-', "_"))
            .with_extension("wasm");
        publish(&built, &self.component)
    }
}

/// Puts a built component where the router looks for it, in one step, unless
/// the same bytes are there already.
fn publish(built: &Path, component: &Path) -> Result<()> {
    let bytes = fs::read(built).with_context(|| format!("can't read {}", built.display()))?;
    let shown = component.strip_prefix(root()).unwrap_or(component).display();
    if fs::read(component).is_ok_and(|old| old == bytes) {
        println!("{shown} is up to date");
        return Ok(());
    }
    if let Some(dir) = component.parent() {
        fs::create_dir_all(dir)?;
    }
    // Not named like a component, so that nobody loads half of it, nor like
    // what another run may be writing.
    let unfinished = component.with_extension(format!("wasm.{}", std::process::id()));
    fs::write(&unfinished, &bytes)?;
    fs::rename(&unfinished, component)?;
    println!("{shown} written, {} KB", bytes.len() / 1000);
    Ok(())
}
