//! How a router is set up and started.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tokio::io::AsyncRead;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::Router;
use super::log::Log;
use crate::client::{Client, PATIENCE, Secrets};
use crate::engine::Engine;

/// The settings of a router to come. Everything ends up on the command line that a user would type.
#[derive(Clone, Debug)]
pub struct RouterBuilder {
    args: Vec<String>,
    env: Vec<(String, String)>,
    config: Option<String>,
    policies_dir: PathBuf,
    wait: bool,
    secrets: Secrets,
}

impl Default for RouterBuilder {
    fn default() -> Self {
        let policies_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies");
        Self {
            args: Vec::new(),
            env: Vec::new(),
            config: None,
            policies_dir,
            wait: true,
            secrets: Secrets::default(),
        }
    }
}

impl RouterBuilder {
    /// Adds a prefill instance.
    pub fn prefill(self, engine: &Engine) -> Self {
        self.knows(engine).arg("--prefill").arg(&engine.address())
    }

    /// Adds a decode instance.
    pub fn decode(self, engine: &Engine) -> Self {
        self.knows(engine).arg("--decode").arg(&engine.address())
    }

    /// Adds an encode instance.
    pub fn encode(self, engine: &Engine) -> Self {
        self.knows(engine).arg("--encode").arg(&engine.address())
    }

    /// This engine's ids must not reach a client either: for engines that the router finds by itself.
    pub fn knows(mut self, engine: &Engine) -> Self {
        self.secrets.add(engine);
        self
    }

    /// Adds a renderer.
    pub fn render(self, engine: &Engine) -> Self {
        self.arg("--render").arg(&engine.address())
    }

    /// Adds a policy to the chain, by the name of its file in the policies directory.
    pub fn policy(self, file: &str) -> Self {
        self.arg("--policy").arg(file)
    }

    /// Where policies are looked for; the repository's `policies/` by default.
    pub fn policies_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.policies_dir = dir.into();
        self
    }

    /// A further argument.
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A configuration file with this content, given as `--config`.
    pub fn config_toml(mut self, toml: &str) -> Self {
        self.config = Some(toml.to_owned());
        self
    }

    /// Gives policies more time than a busy machine takes from them, where a test is not about their time limit.
    pub fn patient(self) -> Self {
        self.arg("--policy-deadline-ms").arg("5000")
    }

    /// Lets [`RouterBuilder::start`] return as soon as the router listens, ready or not.
    pub fn no_wait(mut self) -> Self {
        self.wait = false;
        self
    }

    /// Starts the router, and waits until it is ready for requests and has met all its instances.
    ///
    /// # Errors
    /// If there is no binary, or if the router ends, does not get ready, or waits for an instance; with its log.
    pub async fn start(self) -> Result<Router> {
        let files = tempfile::tempdir()?;
        let mut child = self.spawn(&files)?;
        let pid = child.id().context("the router ended at once")?;
        let mut pipes: Vec<Box<dyn AsyncRead + Send + Unpin>> = Vec::new();
        pipes.extend(child.stderr.take().map(|pipe| Box::new(pipe) as _));
        pipes.extend(child.stdout.take().map(|pipe| Box::new(pipe) as _));
        let log = Log::follow(pipes);
        let address = address_in(&log.wait_for("listening on ", 1).await?)?;
        let client = Client::new(&address).keeping(self.secrets);
        let mut router = Router { child, pid, address, client, log, files };
        if self.wait {
            ready(&mut router).await?;
        }
        Ok(router)
    }

    fn spawn(&self, files: &TempDir) -> Result<Child> {
        let binary = binary()?;
        let mut command = Command::new(&binary);
        command.args(["--listen", "127.0.0.1:0"]).arg("--policies-dir").arg(&self.policies_dir);
        if let Some(toml) = &self.config {
            let path = config_path(files.path());
            std::fs::write(&path, toml)?;
            command.arg("--config").arg(path);
        }
        // The settings of whoever runs the tests are none of theirs.
        for (name, _) in
            env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"EDGE_ROUTER_"))
        {
            command.env_remove(name);
        }
        command
            .env("NO_COLOR", "1")
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().with_context(|| format!("cannot run {}", binary.display()))
    }
}

/// The configuration file below a router's own directory.
pub(super) fn config_path(files: &Path) -> PathBuf {
    files.join("router.toml")
}

/// `EDGE_ROUTER_BIN`, or what `cargo build` leaves beside these tests.
fn binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("EDGE_ROUTER_BIN") {
        return Ok(path.into());
    }
    let tests = env::current_exe()?;
    let profile = tests.ancestors().find(|dir| dir.join("deps").is_dir()).context("no target directory")?;
    let binary = profile.join("edge-router");
    ensure!(binary.is_file(), "{} is missing: run `cargo build -p edge-router` first", binary.display());
    Ok(binary)
}

fn address_in(line: &str) -> Result<String> {
    let (_, after) = line.split_once("listening on ").context("no address")?;
    let address = after.trim_start_matches("http://").split(|c: char| c.is_whitespace() || c == '"').next();
    let address = address.unwrap_or_default().trim_end_matches(['/', ',', '.']);
    ensure!(address.contains(':'), "no address in {line:?}");
    Ok(address.to_owned())
}

async fn ready(router: &mut Router) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = router.child.try_wait()? {
            bail!("the router ended ({status}):\n{}", router.log().join("\n"));
        }
        match router.get("/readyz").await {
            Ok(answer) if answer.status == 200 && has_met_all(router).await? => return Ok(()),
            last if Instant::now() > deadline => {
                let last = last.map(|answer| format!("{} {}", answer.status, answer.text()));
                bail!("the router does not get ready ({last:?}):\n{}", router.log().join("\n"));
            }
            _ => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// One prefill and one decode instance are enough to be ready; which of them are there first is chance.
async fn has_met_all(router: &Router) -> Result<bool> {
    let status = router.status().await?;
    let instances = status["instances"].as_array().context("no instances in /status")?;
    Ok(instances.iter().all(|instance| instance["state"] != "starting"))
}

#[cfg(test)]
mod tests {
    use super::address_in;

    #[test]
    fn the_address_is_found_in_any_log_format() {
        for line in [
            "2026-11-30T08:00:00Z INFO edge_router: listening on 127.0.0.1:8000",
            r#"{"level":"INFO","message":"listening on 127.0.0.1:8000"}"#,
            "listening on http://127.0.0.1:8000 (tls off)",
        ] {
            assert_eq!(address_in(line).unwrap(), "127.0.0.1:8000");
        }
        assert!(address_in("listening on nothing").is_err());
    }
}
