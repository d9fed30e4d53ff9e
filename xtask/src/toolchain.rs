//! How this machine builds a policy for wasm32-wasip2.
//!
//! Usually the target comes from rustup. Where nothing can be downloaded from
//! rustup, Debian's own packages build the same target: their compiler, the
//! source of the standard library, and a C library for WASI.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::{cargo, is_there, output, run};

pub(crate) const TARGET: &str = "wasm32-wasip2";

/// Compiler and standard library of Debian, C library for WASI.
pub(crate) const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "rust-web-src", "wasi-libc"];
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_STD_SOURCE: &str = "/usr/lib/rustlib/src/rust/library/std";
const DEBIAN_WASI_LIBC: &str = "/usr/lib/wasm32-wasi";

/// A way to build policies that works here.
#[derive(Debug)]
pub(crate) enum Toolchain {
    /// The target is part of the toolchain that builds the rest.
    Installed,
    /// Debian's compiler, with the linker from this directory of rustup's
    /// toolchain.
    Debian {
        /// Where `wasm-component-ld` and `rust-lld` are.
        linkers: PathBuf,
    },
}

impl Toolchain {
    /// A way that works without installing anything.
    pub(crate) fn find() -> Result<Option<Self>> {
        let sysroot = PathBuf::from(output(Command::new("rustc").args(["--print", "sysroot"]))?);
        if sysroot.join("lib/rustlib").join(TARGET).join("lib").is_dir() {
            return Ok(Some(Self::Installed));
        }
        let linkers = sysroot.join("lib/rustlib").join(host()?).join("bin");
        let debian = [DEBIAN_RUSTC, DEBIAN_STD_SOURCE].iter().all(|path| Path::new(path).exists())
            && Path::new(DEBIAN_WASI_LIBC).join("libc.a").exists()
            && linkers.join("wasm-component-ld").exists();
        Ok(debian.then_some(Self::Debian { linkers }))
    }

    /// A way that works, installing what is missing if that is allowed; `None`
    /// where there is none, and then every attempt has been reported.
    pub(crate) fn find_or_install() -> Result<Option<Self>> {
        if let Some(found) = Self::find()? {
            return Ok(Some(found));
        }
        for install in [add_rustup_target, install_debian_packages] {
            if let Err(error) = install() {
                println!("{error:#}");
            } else if let Some(found) = Self::find()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// In a few words, how it builds.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Installed => format!("the {TARGET} target of the Rust toolchain"),
            Self::Debian { .. } => {
                format!("Debian's compiler and library sources ({})", DEBIAN_PACKAGES.join(", "))
            }
        }
    }

    /// `cargo build` for the target; what to build is still to be added.
    pub(crate) fn cargo_build(&self) -> Result<Command> {
        let mut cargo = cargo();
        cargo
            .args(["build", "--release", "--target", TARGET])
            // As this workspace has them; else a crate outside would build its
            // own standard library.
            .envs([("CARGO_PROFILE_RELEASE_LTO", "thin"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "4")]);
        if let Self::Debian { linkers } = self {
            cargo
                .arg("-Zbuild-std=std,panic_abort")
                .env("PATH", prepended(linkers)?)
                .env("RUSTC", DEBIAN_RUSTC)
                // Building the standard library is for nightly only, else.
                .env("RUSTC_BOOTSTRAP", "1")
                .env("CARGO_TARGET_WASM32_WASIP2_RUSTFLAGS", format!("-L {DEBIAN_WASI_LIBC}"))
                // Cargo sets it for what it runs, such as this program, to
                // the libraries of another compiler.
                .env_remove("LD_LIBRARY_PATH")
                .env_remove("RUSTFLAGS")
                .env_remove("RUSTC_WRAPPER");
        }
        Ok(cargo)
    }
}

fn add_rustup_target() -> Result<()> {
    if env::var("RUSTUP_AUTO_INSTALL").is_ok_and(|allowed| allowed == "0") {
        anyhow::bail!("not asking rustup for the target: RUSTUP_AUTO_INSTALL=0");
    }
    if !is_there("rustup") {
        anyhow::bail!("not asking rustup for the target: there is no rustup");
    }
    run(
        &format!("adding the {TARGET} target with rustup"),
        Command::new("rustup").args(["target", "add", TARGET]),
    )
}

fn install_debian_packages() -> Result<()> {
    if !is_there("apt-get") {
        anyhow::bail!("not installing Debian's compiler: there is no apt-get");
    }
    let root = output(Command::new("id").arg("-u"))? == "0";
    if !root {
        anyhow::bail!(
            "not installing Debian's compiler: that needs root. As root: apt-get install {}",
            DEBIAN_PACKAGES.join(" ")
        );
    }
    run("updating the list of packages", apt_get().args(["update", "-qq"]))?;
    run(
        "installing Debian's compiler and library sources",
        apt_get().args(["install", "-y", "-qq", "--no-install-recommends"]).args(DEBIAN_PACKAGES),
    )
}

fn apt_get() -> Command {
    let mut apt_get = Command::new("apt-get");
    apt_get.env("DEBIAN_FRONTEND", "noninteractive");
    apt_get
}

fn host() -> Result<String> {
    let version = output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}

fn prepended(dir: &Path) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(dir.to_owned()).chain(env::split_paths(&path));
    Ok(env::join_paths(dirs)?)
}
