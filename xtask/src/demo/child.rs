//! Programs that run beside this one and end with it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::run::is_there;

/// How long a program may take to do what it should; it is far quicker unless
/// the machine is overloaded.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How much of a log is worth showing.
const LOG_LINES: usize = 20;

/// A running program; dropping it ends it.
pub(super) struct Child {
    process: process::Child,
    address: String,
    /// The last lines that it wrote.
    log: Arc<Mutex<Vec<String>>>,
    /// The address that it says it listens on.
    announced: Receiver<String>,
}

impl Child {
    /// Starts `program`.
    pub(super) fn start(name: &str, program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut process = ending_with_us(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("can't start the {name}"))?;
        let log = Arc::<Mutex<Vec<String>>>::default();
        let (announce, announced) = channel();
        let stdout = process.stdout.take().map(|stdout| Box::new(stdout) as Box<dyn Read + Send>);
        let stderr = process.stderr.take().map(|stderr| Box::new(stderr) as Box<dyn Read + Send>);
        for output in [stdout, stderr].into_iter().flatten() {
            let (log, announce) = (Arc::clone(&log), announce.clone());
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some((_, address)) = line.split_once("listening on ") {
                        // Nobody may be waiting for it.
                        let _ = announce.send(address.trim().to_owned());
                    }
                    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                    if log.len() == LOG_LINES {
                        log.remove(0);
                    }
                    log.push(line);
                }
            });
        }
        Ok(Self { process, address: String::new(), log, announced })
    }

    /// Waits until it says where it listens.
    pub(super) fn wait_for_address(&mut self) -> Result<()> {
        self.address = self
            .announced
            .recv_timeout(PATIENCE)
            .with_context(|| format!("it did not say where it listens; it said:\n{}", self.log()))?;
        Ok(())
    }

    /// `127.0.0.1:port`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The last lines that it wrote.
    pub(super) fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }
}

/// Runs `program` so that it ends also when this process is killed and drops
/// nothing, where the system has the means.
fn ending_with_us(program: &Path) -> Command {
    if !is_there("setpriv") {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
