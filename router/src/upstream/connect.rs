//! Opens connections.

use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::body::LegBody;

/// Why no connection came about. Nothing was sent.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Refused, unreachable, or the name does not resolve.
    #[error("can't connect to {address}")]
    Io {
        /// `host:port`.
        address: String,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// No answer in time.
    #[error("no connection to {address} within {after:?}")]
    TimedOut {
        /// `host:port`.
        address: String,
        /// The limit.
        after: Duration,
    },
}

/// Connects to `address` (`host:port`; a host name is resolved anew each time) and starts the task
/// that drives the connection. The task ends with the connection.
pub(super) async fn connect(address: &str, limit: Duration) -> Result<SendRequest<LegBody>, ConnectError> {
    let io = |source| ConnectError::Io { address: address.to_owned(), source };
    let stream = timeout(limit, TcpStream::connect(address))
        .await
        .map_err(|_| ConnectError::TimedOut { address: address.to_owned(), after: limit })?
        .map_err(io)?;
    // A leg's head and body may be two writes; Nagle would hold the second back for a round trip.
    stream.set_nodelay(true).map_err(io)?;
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|e| io(std::io::Error::other(e)))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::trace!(%error, "engine connection ended");
        }
    });
    Ok(sender)
}
