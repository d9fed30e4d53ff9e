//! The HTTP server in front of an engine, with uvicorn's manners: no delay, and short patience with idle connections.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::route::Service;

/// Requests on one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Activity {
    /// The connection's number.
    pub(crate) connection: usize,
    /// Not yet answered to the end.
    pub(crate) open: usize,
    /// All so far.
    pub(crate) seen: usize,
}

/// Accepts connections until dropped, and drops them with itself.
pub(crate) async fn serve(listener: TcpListener, service: Arc<Service>) {
    let mut connections = JoinSet::new();
    let mut accepted_so_far = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    accepted_so_far += 1;
                    connections.spawn(connection(stream, Arc::clone(&service), accepted_so_far));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, service: Arc<Service>, number: usize) {
    let _ = stream.set_nodelay(true);
    let idle_timeout = service.config.idle_timeout();
    let activity = watch::Sender::new(Activity { connection: number, ..Activity::default() });
    let idle = idle(activity.subscribe(), idle_timeout);
    let connection = http1::Builder::new().serve_connection(
        TokioIo::new(stream),
        service_fn(move |request| {
            let (service, activity) = (Arc::clone(&service), activity.clone());
            async move { service.call(request, activity).await }
        }),
    );
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = idle => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Resolves when there was a request, and then none for `patience`: a connection that never asked may stay.
async fn idle(mut activity: watch::Receiver<Activity>, patience: Duration) {
    loop {
        let quiet = activity.wait_for(|activity| activity.seen > 0 && activity.open == 0).await.map(drop);
        if quiet.is_err() || timeout(patience, activity.changed()).await.is_err() {
            return;
        }
    }
}
