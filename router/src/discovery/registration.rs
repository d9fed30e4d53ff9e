//! Engines that announce themselves: vLLM's MoRIIO and, in older versions, P2P-NCCL.
//!
//! An engine connects a ZeroMQ DEALER to this port (`proxy_ip` and `proxy_ping_port` in its settings) and
//! sends the same message every three seconds, until it ends; nothing is answered, and nobody says goodbye
//! (`moriio_heartbeat.py`). Whoever has not been heard of for some time has left.
//!
//! What arrives is bounded in every way, and nothing of it can stop the listener: what makes no sense is
//! counted, and said now and then.

mod message;
mod registrants;
mod zmtp;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::message::Refusal;
use self::registrants::Registrants;
use self::zmtp::{Connection, ZmtpError};
use super::Source;
use crate::metrics::DiscoveryMetrics;

/// One for each engine, and as many again.
const MAX_CONNECTIONS: usize = 2 * registrants::MAX;
/// For the greetings.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Engines are heard of every three seconds, and connect anew when they must.
const IDLE: Duration = Duration::from_secs(30);
/// Messages that wait for their turn; engines wait beyond.
const WAITING: usize = 256;
/// Time between two lines about refused messages.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// A message, or why it is none, and from where it came.
type Word = (SocketAddr, Result<Vec<Vec<u8>>, ZmtpError>);

/// Announces the engines that are heard of on `listener` until the task is dropped.
pub(super) async fn listen(
    listener: TcpListener,
    ttl: Duration,
    metrics: Arc<DiscoveryMetrics>,
    source: Source,
) {
    let (words, heard) = mpsc::channel(WAITING);
    tokio::join!(accept(listener, words), register(heard, ttl, Refusals::new(metrics), source));
}

async fn accept(listener: TcpListener, words: mpsc::Sender<Word>) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "can't accept a registration");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // One too many is dropped, and comes again.
        let Ok(place) = Arc::clone(&free).try_acquire_owned() else { continue };
        let words = words.clone();
        tokio::spawn(async move {
            converse(stream, peer, &words).await;
            drop(place);
        });
    }
}

/// Passes on what one engine says until it leaves or breaks the protocol.
async fn converse(stream: TcpStream, peer: SocketAddr, words: &mpsc::Sender<Word>) {
    let connection = timeout(HANDSHAKE, Connection::greet(stream)).await;
    let broken = match connection.unwrap_or(Err(ZmtpError::Late)) {
        Ok(mut connection) => loop {
            match timeout(IDLE, connection.message()).await {
                Ok(Ok(message)) => {
                    if words.send((peer, Ok(message))).await.is_err() {
                        return;
                    }
                }
                Ok(Err(error)) => break error,
                Err(_) => return,
            }
        },
        Err(error) => error,
    };
    // That an engine has gone is no fault, and its heartbeat will be missed.
    if !matches!(broken, ZmtpError::Io(_)) {
        let _ = words.send((peer, Err(broken))).await;
    }
}

/// Keeps the list of those who have been heard of lately.
async fn register(mut heard: mpsc::Receiver<Word>, ttl: Duration, mut refusals: Refusals, source: Source) {
    let mut registrants = Registrants::default();
    let mut sweep = interval((ttl / 8).clamp(Duration::from_millis(50), Duration::from_secs(1)));
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let changed = tokio::select! {
            // If this process has stood still, heartbeats that wait count before anybody is missed.
            biased;
            word = heard.recv() => match word {
                Some((peer, word)) => match hear(&mut registrants, word) {
                    Ok(changed) => changed,
                    Err(refusal) => {
                        refusals.count(peer, &refusal);
                        false
                    }
                },
                None => return,
            },
            _ = sweep.tick() => registrants.expire(Instant::now(), ttl),
        };
        if changed {
            source.announce(registrants.roster());
        }
    }
}

/// Whether the roster has changed by it.
fn hear(registrants: &mut Registrants, word: Result<Vec<Vec<u8>>, ZmtpError>) -> Result<bool, Refusal> {
    match message::parse(&word?)? {
        Some(spec) => registrants.heard(spec, Instant::now()),
        None => Ok(false),
    }
}

/// Counts what is refused, and says so now and then.
#[derive(Debug)]
struct Refusals {
    metrics: Arc<DiscoveryMetrics>,
    said: Option<Instant>,
    since: u64,
}

impl Refusals {
    fn new(metrics: Arc<DiscoveryMetrics>) -> Self {
        Self { metrics, said: None, since: 0 }
    }

    fn count(&mut self, peer: SocketAddr, refusal: &Refusal) {
        self.metrics.registration_refused(refusal.reason());
        self.since += 1;
        if self.said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
            tracing::warn!(%peer, %refusal, count = self.since, "registration refused");
            (self.said, self.since) = (Some(Instant::now()), 0);
        }
    }
}

#[cfg(test)]
mod tests;
