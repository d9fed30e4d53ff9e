//! Accepts connections and serves them until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::dispatch::dispatch;
use super::stall::Stalling;
use crate::app::App;

/// A client connection is closed after this if no request comes on it, or its head does not end, or,
/// in HTTP/2, if the client does not answer a ping that is sent as often.
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
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(IDLE);
    let stream = Stalling::new(stream, app.config.timeouts.client_stall);
    let (app, asked) = (Arc::clone(app), CancellationToken::new());
    let first_request = asked.clone();
    let service = service_fn(move |request| {
        asked.cancel();
        dispatch(Arc::clone(&app), request)
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        // The server sets no limit while it does not know which version of HTTP the client speaks.
        let silent = async {
            if timeout(IDLE, first_request.cancelled()).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = connection => if let Err(error) = ended {
                tracing::debug!(error, "client connection ended");
            },
            () = silent => tracing::debug!("client sent no request"),
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::{file::Settings, resolve};
    use crate::fleet::{Fleet, FleetSettings};
    use crate::metrics::Metrics;
    use crate::policy::Chain;

    fn app() -> Arc<App> {
        let fleet = Fleet::new(FleetSettings::default());
        let (metrics, chain) = (Arc::new(Metrics::new(&fleet)), Chain::new(Vec::new()).unwrap());
        let config = resolve(&Settings::default()).unwrap();
        Arc::new(App::new(config, fleet, chain, metrics, mpsc::channel(1).0))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_says_what_it_wants_is_let_go() {
        let (listener, connections) = (bind("127.0.0.1:0".parse().unwrap()).unwrap(), Arc::default());
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, app(), connections, CancellationToken::new()));
        for beginning in ["", "P", "PRI * HTTP/2.0\r\n"] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(beginning.as_bytes()).await.unwrap();
            let read = timeout(IDLE * 3, client.read(&mut [0; 16])).await;
            assert!(matches!(read, Ok(Ok(0) | Err(_))), "{beginning:?}: {read:?}");
        }
    }
}
