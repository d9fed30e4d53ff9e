//! The real router binary, run as a child process with engines behind it.

mod builder;
mod log;
mod proc;

use std::process::ExitStatus;

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::timeout;

pub use builder::RouterBuilder;

use crate::client::{Answer, Client, PATIENCE, Stream};
use crate::prometheus::Samples;
use log::Log;

/// A running router; dropping it kills it.
pub struct Router {
    child: Child,
    pid: u32,
    address: String,
    client: Client,
    log: Log,
    files: TempDir,
}

impl Router {
    /// A router to come; give it engines, then start it.
    pub fn builder() -> RouterBuilder {
        RouterBuilder::default()
    }

    /// Where it listens, as `127.0.0.1:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it listens, as `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client for it, to add headers to.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// GET of a path.
    ///
    /// # Errors
    /// If there is no whole answer.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.client.get(path).await
    }

    /// POST of a JSON body to a path.
    ///
    /// # Errors
    /// If there is no whole answer.
    pub async fn post_json(&self, path: &str, body: &Value) -> Result<Answer> {
        self.client.post_json(path, body).await
    }

    /// POST of a JSON body to a path; returns at the answer's headers.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn stream(&self, path: &str, body: &Value) -> Result<Stream> {
        self.client.stream(path, body).await
    }

    /// `GET /status`.
    ///
    /// # Errors
    /// If it does not answer 200.
    pub async fn status(&self) -> Result<Value> {
        Ok(self.get("/status").await?.ok()?.json())
    }

    /// `GET /metrics`.
    ///
    /// # Errors
    /// If it does not answer 200.
    pub async fn metrics(&self) -> Result<Samples> {
        Ok(Samples::parse(&self.get("/metrics").await?.ok()?.text()))
    }

    /// All lines of its log so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    /// Waits for a line of the log that contains `part`, one written earlier included, and returns it.
    ///
    /// # Errors
    /// If there is none in time.
    pub async fn wait_for_log(&self, part: &str) -> Result<String> {
        self.log.wait_for(part, 1).await
    }

    /// Waits until `count` lines of the log contain `part`, and returns the last of them: for what happens again.
    ///
    /// # Errors
    /// If there are not so many in time.
    pub async fn wait_for_log_times(&self, part: &str, count: usize) -> Result<String> {
        self.log.wait_for(part, count).await
    }

    /// A directory of its own, with the configuration file in it; deleted with the router.
    pub fn files(&self) -> &std::path::Path {
        self.files.path()
    }

    /// Writes the configuration file anew, at once, as an editor or an operator would: a new file in its place.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn rewrite_config(&self, toml: &str) -> Result<()> {
        let (path, next) = (builder::config_path(self.files()), self.files().join("next.toml"));
        std::fs::write(&next, toml)?;
        Ok(std::fs::rename(next, path)?)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its resident memory, in bytes.
    ///
    /// # Errors
    /// If it is not running any more.
    pub fn rss_bytes(&self) -> Result<u64> {
        proc::rss_bytes(self.pid)
    }

    /// The processor time that it has used, in seconds.
    ///
    /// # Errors
    /// If it is not running any more.
    pub fn cpu_seconds(&self) -> Result<f64> {
        proc::cpu_seconds(self.pid)
    }

    /// Sends it SIGTERM; it may then drain. See [`Router::exited`].
    ///
    /// # Errors
    /// If no signal can be sent.
    pub async fn terminate(&self) -> Result<()> {
        proc::signal(self.pid, "TERM").await
    }

    /// Sends it SIGHUP.
    ///
    /// # Errors
    /// If no signal can be sent.
    pub async fn hang_up(&self) -> Result<()> {
        proc::signal(self.pid, "HUP").await
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it does not end in time.
    pub async fn exited(&mut self) -> Result<ExitStatus> {
        let status = timeout(PATIENCE, self.child.wait()).await.context("the router does not end")?;
        Ok(status?)
    }
}
