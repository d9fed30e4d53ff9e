//! Sends one request and waits for the head of its answer.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, Uri};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::time::timeout;

use super::body::{LegBody, ResponseBody};
use super::connect::ConnectError;
use super::pool::{Connection, Pool};
use crate::body::splice::Segments;

/// A request that can be built more than once.
#[derive(Debug, Clone)]
pub struct LegRequest {
    /// Method of the leg.
    pub method: Method,
    /// Path and query.
    pub uri: Uri,
    /// Headers without `host` and `content-length`.
    pub headers: HeaderMap,
    /// The body; cloning it shares the bytes.
    pub body: Segments,
    /// Whether it does no harm if the engine gets it twice.
    pub repeatable: bool,
}

/// Why no answer came.
#[derive(Debug, Error)]
pub enum SendError {
    /// Nothing was sent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection broke before a byte of the answer; the engine may have seen the request.
    #[error("{address} closed the connection without an answer")]
    Closed {
        /// `host:port`.
        address: String,
        /// Whether the connection had been used before: then the engine has most likely closed it while
        /// it was idle, and is well.
        reused: bool,
        /// hyper's reason.
        #[source]
        source: hyper::Error,
    },
    /// No head of an answer in time.
    #[error("no answer from {address} within {after:?}")]
    TimedOut {
        /// `host:port`.
        address: String,
        /// The limit.
        after: Duration,
    },
}

impl SendError {
    /// Whether it is certain that the engine has not seen the request.
    pub fn never_sent(&self) -> bool {
        matches!(self, Self::Connect(_))
    }

    /// Whether it most likely says nothing of the engine: a used connection broke.
    pub fn is_stale_connection(&self) -> bool {
        matches!(self, Self::Closed { reused: true, .. })
    }

    /// Whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::Connect(ConnectError::TimedOut { .. }))
    }
}

impl LegRequest {
    fn build(&self, address: &str) -> Request<LegBody> {
        let mut request = Request::new(LegBody::from(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        if let Ok(host) = http::HeaderValue::from_str(address) {
            request.headers_mut().insert(http::header::HOST, host);
        }
        request
    }
}

impl Pool {
    /// Sends `request`. It is repeated once, on a new connection, when nothing was written, or, if it is
    /// repeatable, when a connection that had been used before broke without a byte of an answer: then
    /// the engine has most likely closed it while it was idle.
    ///
    /// # Errors
    /// [`SendError`]; `head_timeout` covers everything up to the head of the answer.
    pub async fn send(
        self: &Arc<Self>,
        request: &LegRequest,
        head_timeout: Duration,
    ) -> Result<Response<ResponseBody>, SendError> {
        timeout(head_timeout, self.send_unlimited(request)).await.unwrap_or_else(|_| {
            Err(SendError::TimedOut { address: self.address().to_owned(), after: head_timeout })
        })
    }

    async fn send_unlimited(
        self: &Arc<Self>,
        request: &LegRequest,
    ) -> Result<Response<ResponseBody>, SendError> {
        let connection = self.take().await?;
        match self.attempt(connection, request).await {
            Err(failure) if failure.unwritten || (failure.reused && request.repeatable) => {
                self.attempt(self.open().await?, request).await
            }
            outcome => outcome,
        }
        .map_err(|failure| SendError::Closed {
            address: self.address().to_owned(),
            reused: failure.reused,
            source: failure.error,
        })
    }

    async fn attempt(
        self: &Arc<Self>,
        mut connection: Connection,
        request: &LegRequest,
    ) -> Result<Response<ResponseBody>, Failure> {
        let reused = connection.reused;
        match connection.sender.try_send_request(request.build(self.address())).await {
            Ok(response) => {
                Ok(response
                    .map(|incoming: Incoming| ResponseBody::new(incoming, connection, Arc::clone(self))))
            }
            Err(mut error) => {
                if reused {
                    // Those that have been idle for longer are no better.
                    self.close_idle();
                }
                Err(Failure { unwritten: error.take_message().is_some(), reused, error: error.into_error() })
            }
        }
    }
}

struct Failure {
    /// hyper handed the request back: not a byte of it was written.
    unwritten: bool,
    /// The connection had carried a request before.
    reused: bool,
    error: hyper::Error,
}
