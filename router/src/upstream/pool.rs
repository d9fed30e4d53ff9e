//! The idle connections to one engine.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use hyper::client::conn::http1::SendRequest;
use tokio::time::{Instant, timeout};

use super::body::LegBody;
use super::connect::{ConnectError, connect};

/// A connection whose answer has been read needs this long at most to take the next request.
const SETTLE: Duration = Duration::from_millis(50);

/// Limits of a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolSettings {
    /// For name resolution, TCP and the handshake together.
    pub connect_timeout: Duration,
    /// Idle connections older than this are closed. Must be below the engine's keep-alive, which is
    /// 5 s unless `VLLM_HTTP_TIMEOUT_KEEP_ALIVE` says otherwise: the engine closes without a word, and
    /// a request sent at that moment is lost.
    pub idle_timeout: Duration,
    /// A connection is not used again after this age, so that a name that moved is noticed.
    pub max_age: Duration,
    /// Idle connections kept per engine.
    pub max_idle: usize,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            idle_timeout: Duration::from_secs(4),
            max_age: Duration::from_secs(300),
            max_idle: 1024,
        }
    }
}

/// One connection to an engine while a request is using it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sender: SendRequest<LegBody>,
    /// Whether it has carried a request before: then the engine may have closed it unseen.
    pub(super) reused: bool,
    opened: Instant,
}

/// Connections to one engine, the last used first.
#[derive(Debug)]
pub struct Pool {
    address: String,
    settings: PoolSettings,
    idle: Mutex<VecDeque<(Connection, Instant)>>,
}

impl Pool {
    /// An empty pool for the engine at `address` (`host:port`).
    pub fn new(address: String, settings: PoolSettings) -> Arc<Self> {
        Arc::new(Self { address, settings, idle: Mutex::default() })
    }

    /// `host:port` of the engine.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The most recently used idle connection that still stands, else a new one.
    pub(super) async fn take(&self) -> Result<Connection, ConnectError> {
        while let Some(mut connection) = self.take_idle() {
            // Ready at once, or as soon as its task has seen the end of the last answer. One that is still
            // busy after that is sending a request that the engine did not care to read.
            let ready = match connection.sender.ready().now_or_never() {
                Some(ready) => ready.is_ok(),
                None => matches!(timeout(SETTLE, connection.sender.ready()).await, Ok(Ok(()))),
            };
            if ready {
                return Ok(connection);
            }
        }
        self.open().await
    }

    pub(super) async fn open(&self) -> Result<Connection, ConnectError> {
        let sender = connect(&self.address, self.settings.connect_timeout).await?;
        Ok(Connection { sender, reused: false, opened: Instant::now() })
    }

    /// Takes back a connection whose answer was read to the end.
    pub(super) fn give_back(&self, mut connection: Connection) {
        let now = Instant::now();
        if connection.sender.is_closed() || now - connection.opened > self.settings.max_age {
            return;
        }
        connection.reused = true;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.retire(&mut idle, now);
        if idle.len() < self.settings.max_idle {
            idle.push_back((connection, now));
        }
    }

    /// Closes what has been idle too long; called now and then for an engine without traffic.
    pub fn sweep(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.retire(&mut idle, Instant::now());
    }

    /// Closes all idle connections.
    pub(super) fn close_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn take_idle(&self) -> Option<Connection> {
        let now = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.retire(&mut idle, now);
        while let Some((connection, _)) = idle.pop_back() {
            if !connection.sender.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    fn retire(&self, idle: &mut VecDeque<(Connection, Instant)>, now: Instant) {
        while idle.front().is_some_and(|(_, since)| now - *since > self.settings.idle_timeout) {
            idle.pop_front();
        }
    }
}
