//! Simulated engines and a router in front of them, on this machine alone.

use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use super::child::{Child, PATIENCE};
use super::http;
use crate::run::Stopwatch;

/// Two engines of a role are the least that leaves a policy a choice.
const ENGINES: usize = 2;

/// A running router and its engines; dropping it ends them.
pub(super) struct Deployment {
    /// Dropped first: it must not see its engines die.
    router: Child,
    router_address: String,
    prefill: Vec<Child>,
    decode: Vec<Child>,
}

impl Deployment {
    /// Starts the binaries in `binaries` with these arguments beside the
    /// addresses, and waits until the router is ready.
    pub(super) fn start(binaries: &Path, engine: &[&str], router: &[&str]) -> Result<Self> {
        let prefill = engines(binaries, "prefill", engine)?;
        let decode = engines(binaries, "decode", engine)?;
        let router_address = free_address()?;
        let mut arguments = vec!["--listen", &router_address];
        arguments.extend(router);
        prefill.iter().for_each(|engine| arguments.extend(["--prefill", engine.address()]));
        decode.iter().for_each(|engine| arguments.extend(["--decode", engine.address()]));
        let router = Child::start("router", &binaries.join("edge-router"), &arguments)?;
        let deployment = Self { router, router_address, prefill, decode };
        deployment.wait_for("ready", || {
            http::get(&deployment.router_address, "/readyz").is_ok_and(|answer| answer.status == 200)
        })?;
        Ok(deployment)
    }

    /// `127.0.0.1:port` of the router.
    pub(super) fn router(&self) -> &str {
        &self.router_address
    }

    /// The decode engines.
    pub(super) fn decode(&self) -> impl Iterator<Item = &str> {
        self.decode.iter().map(Child::address)
    }

    /// The engines and the router, one a line.
    pub(super) fn show(&self) {
        self.prefill.iter().for_each(|engine| println!("prefill  http://{}", engine.address()));
        self.decode().for_each(|address| println!("decode   http://{address}"));
        println!("router   http://{}", self.router_address);
    }

    /// Waits until `done`.
    ///
    /// # Errors
    ///
    /// With the router's log, when that takes too long.
    pub(super) fn wait_for(&self, what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
        let stopwatch = Stopwatch::start();
        while !done() {
            if stopwatch.elapsed() > PATIENCE {
                bail!("the router is not {what}; it logged:\n{}", self.router.log());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

fn engines(binaries: &Path, role: &str, arguments: &[&str]) -> Result<Vec<Child>> {
    let arguments: Vec<_> = ["--role", role].iter().chain(arguments).copied().collect();
    let start = |_| {
        let mut engine = Child::start(role, &binaries.join("sim-engine"), &arguments)?;
        engine.wait_for_address()?;
        Ok(engine)
    };
    (0..ENGINES).map(start).collect()
}

/// A free port of the loopback interface; free at least until now.
fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
