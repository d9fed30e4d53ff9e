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

    /// Line number `nth`, from 1, of those that contain `part`, waiting for it if need be.
    pub(super) async fn wait_for(&self, part: &str, nth: usize) -> Result<String> {
        let mut grown = self.grown.clone();
        let search = async {
            loop {
                grown.borrow_and_update();
                let found = self.find(part, nth);
                // When all pipes have ended, no line will come any more.
                if found.is_some() || grown.changed().await.is_err() {
                    return found.or_else(|| self.find(part, nth));
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

impl Log {
    fn find(&self, part: &str, nth: usize) -> Option<String> {
        lock(&self.lines).iter().filter(|line| line.contains(part)).nth(nth.saturating_sub(1)).cloned()
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
        assert_eq!(log.wait_for("fir", 1).await.unwrap(), "first");
        let (found, ()) = tokio::join!(log.wait_for("s", 2), async {
            write.write_all(b"the second\n").await.unwrap();
        });
        assert_eq!(found.unwrap(), "the second");
        drop(write);
        assert!(log.wait_for("third", 1).await.is_err());
    }
}
