//! What a child process writes, line by line.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::PATIENCE;
use crate::lock::lock;

/// The lines of one or more pipes, in order of arrival.
pub(super) struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    grown: watch::Receiver<usize>,
    _readers: JoinSet<()>,
}

impl Log {
    /// Follows pipes until they end.
    pub(super) fn follow(pipes: Vec<Box<dyn AsyncRead + Send + Unpin>>) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (sender, grown) = watch::channel(0);
        let mut readers = JoinSet::new();
        for pipe in pipes {
            let (lines, sender) = (Arc::clone(&lines), sender.clone());
            readers.spawn(async move {
                let mut pipe = BufReader::new(pipe).lines();
                while let Ok(Some(line)) = pipe.next_line().await {
                    lock(&lines).push(line);
                    sender.send_modify(|count| *count += 1);
                }
            });
        }
        Self { lines, grown, _readers: readers }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        lock(&self.lines).clone()
    }

    /// The first line that contains `part`, waiting for it if need be.
    pub(super) async fn wait_for(&self, part: &str) -> Result<String> {
        let mut grown = self.grown.clone();
        let search = async {
            loop {
                grown.borrow_and_update();
                if let Some(line) = lock(&self.lines).iter().find(|line| line.contains(part)) {
                    return Some(line.clone());
                }
                // All pipes have ended: no line will come any more.
                if grown.changed().await.is_err() {
                    return lock(&self.lines).iter().find(|line| line.contains(part)).cloned();
                }
            }
        };
        let found = timeout(PATIENCE, search).await.with_context(|| format!("no {part:?} in the log yet"))?;
        match found {
            Some(line) => Ok(line),
            None => bail!("the process ended without {part:?} in its log:\n{}", self.lines().join("\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn a_line_is_found_whether_early_or_late() {
        let (mut write, read) = tokio::io::duplex(64);
        let log = Log::follow(vec![Box::new(read)]);
        write.write_all(b"first\n").await.unwrap();
        assert_eq!(log.wait_for("fir").await.unwrap(), "first");
        let (found, ()) = tokio::join!(log.wait_for("second"), async {
            write.write_all(b"the second\n").await.unwrap();
        });
        assert_eq!(found.unwrap(), "the second");
        drop(write);
        assert!(log.wait_for("third").await.is_err());
    }
}
