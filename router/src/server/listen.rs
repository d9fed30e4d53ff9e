//! Accepts connections and serves them until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::dispatch::dispatch;
use crate::app::App;

/// An idle client connection, or one whose request head does not come, is closed after this.
const IDLE: Duration = Duration::from_secs(75);

/// Pending connections; the default of 128 overflows when a fleet of clients starts at once.
const BACKLOG: u32 = 4096;

/// Binds `address`.
///
/// # Errors
/// When the address is taken or not ours.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket =
        if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() }?;
    // A restarted router must not wait for the old one's connections to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `listener` until `stop`. Connections live on; `connections` ends them.
pub async fn accept(
    listener: TcpListener,
    app: Arc<App>,
    connections: Arc<GracefulShutdown>,
    stop: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => serve(stream, &app, &connections),
            Err(error) => {
                // Out of file descriptors, most likely: let some connections end first.
                tracing::warn!(%error, "can't accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn serve(stream: TcpStream, app: &Arc<App>, connections: &GracefulShutdown) {
    // The head of an answer and its first frame are two writes; Nagle would hold the second back until
    // the client acknowledges the first, up to 40 ms.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "client left at once");
        return;
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    let app = Arc::clone(app);
    let service = service_fn(move |request| dispatch(Arc::clone(&app), request));
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error, "client connection ended");
        }
    });
}
