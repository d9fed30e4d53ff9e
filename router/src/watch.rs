//! Tells when it is time to look at files, and how they look.
//!
//! The folder of a file is watched, not the file: editors and `mv` replace it, and Kubernetes swaps a
//! link above it. Events only say that it is time to look; a slow poll looks as well, for file systems
//! without events.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often the files are looked at without an event.
const POLL: Duration = Duration::from_millis(400);

/// What the file system says of a file, links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looks {
    identity: (u64, u64),
    length: u64,
    modified: (i64, i64),
}

impl Looks {
    /// Of the file at `path`; `None` if there is none that can be seen.
    pub fn of(path: &Path) -> Option<Self> {
        let m = std::fs::metadata(path).ok()?;
        Some(Self { identity: (m.dev(), m.ino()), length: m.len(), modified: (m.mtime(), m.mtime_nsec()) })
    }
}

/// Times at which some files may have changed.
#[derive(Debug)]
pub struct Changes {
    events: mpsc::Receiver<()>,
    events_end: bool,
    poll: Interval,
    /// Its drop ends the events.
    _watcher: Option<notify::RecommendedWatcher>,
}

impl Changes {
    /// Of `files`. Must be made within the runtime.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Self {
        let (sender, events) = mpsc::channel(1);
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { events, events_end: false, poll, _watcher: watcher(files, sender) }
    }

    /// Waits until it is time to look; the first time is now.
    pub async fn next(&mut self) {
        tokio::select! {
            event = self.events.recv(), if !self.events_end => self.events_end = event.is_none(),
            _ = self.poll.tick() => {}
        }
    }
}

/// Sends an event when something happens in a folder of `files`. A full channel is fine: the reader has
/// yet to look.
fn watcher<'a>(
    files: impl IntoIterator<Item = &'a Path>,
    events: mpsc::Sender<()>,
) -> Option<notify::RecommendedWatcher> {
    let wake = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|e| !e.kind.is_access()) {
            let _ = events.try_send(());
        }
    };
    let unwatched = |error: notify::Error| tracing::warn!(%error, "no file events; files are polled");
    let mut watcher = notify::recommended_watcher(wake).map_err(unwatched).ok()?;
    let mut folders: Vec<&Path> = files.into_iter().filter_map(Path::parent).collect();
    folders.sort_unstable();
    folders.dedup();
    for folder in folders {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            unwatched(error);
        }
    }
    Some(watcher)
}
