//! Requests that keep coming while the policy is replaced.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, bail};

use super::child::PATIENCE;
use super::http::Connection;
use crate::run::Stopwatch;

/// Clients at a time. Each waits for its answer before it asks again.
const CLIENTS: usize = 8;
const REQUEST: &str =
    r#"{"model": "sim", "stream": true, "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}"#;

pub(super) struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    failed: AtomicU64,
    first_failure: Mutex<Option<String>>,
}

/// What has been done.
pub(super) struct Done {
    pub(super) sent: u64,
    pub(super) failed: u64,
    pub(super) first_failure: Option<String>,
}

impl Load {
    pub(super) fn start(router: &str) -> Self {
        let shared = Arc::<Shared>::default();
        let client = |_| {
            let (shared, router) = (Arc::clone(&shared), router.to_owned());
            thread::spawn(move || shared.ask_again_and_again(&router))
        };
        Self { clients: (0..CLIENTS).map(client).collect(), shared }
    }

    /// Until so many more requests are done.
    pub(super) fn wait_for(&self, requests: u64) -> Result<()> {
        let stopwatch = Stopwatch::start();
        let enough = self.shared.sent.load(Ordering::Relaxed) + requests;
        while self.shared.sent.load(Ordering::Relaxed) < enough {
            if stopwatch.elapsed() > PATIENCE {
                bail!("requests do not come to an end");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub(super) fn stop(self) -> Done {
        self.shared.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            // A panic has been printed.
            let _ = client.join();
        }
        Done {
            sent: self.shared.sent.load(Ordering::Relaxed),
            failed: self.shared.failed.load(Ordering::Relaxed),
            first_failure: self.shared.first_failure.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }
}

impl Shared {
    fn ask_again_and_again(&self, router: &str) {
        while !self.stop.load(Ordering::Relaxed) {
            let answer = Connection::open(router)
                .and_then(|mut router| router.post("/v1/chat/completions", REQUEST, |_| {}));
            let failure = match answer {
                Ok(answer) if answer.status == 200 && answer.body.contains("data: [DONE]") => None,
                Ok(answer) => Some(format!("{} {}", answer.status, answer.body)),
                Err(error) => Some(format!("{error:#}")),
            };
            if let Some(failure) = failure {
                self.failed.fetch_add(1, Ordering::Relaxed);
                self.first_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            }
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}
