//! Mooncake's bootstrap server: `GET /query` says which engine id and which worker each DP rank has (engine contract
//! §5). It is part of the prefill engine's process, and goes with it.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::rank::Rank;

/// Answers until dropped.
pub(crate) async fn serve(listener: TcpListener, ranks: Arc<[Arc<Rank>]>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let ranks = Arc::clone(&ranks);
                connections.spawn(async move {
                    let answer = service_fn(|request| std::future::ready(answer(&request, &ranks)));
                    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn answer(request: &Request<Incoming>, ranks: &[Arc<Rank>]) -> Result<Response<Full<Bytes>>, http::Error> {
    let known = (request.method(), request.uri().path()) == (&Method::GET, "/query");
    let (status, body) = match known {
        true => (StatusCode::OK, ranks.iter().map(|rank| worker(rank)).collect()),
        false => (StatusCode::NOT_FOUND, json!({ "detail": "Not Found" })),
    };
    Response::builder()
        .status(status)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
}

fn worker(rank: &Rank) -> (String, Value) {
    let address = format!("tcp://{}", rank.side_address());
    let value = json!({ "engine_id": rank.place.engine_id, "worker_addr": { "0": { "0": address } } });
    (rank.place.index.to_string(), value)
}
