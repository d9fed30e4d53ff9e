//! The same answers in HTTP/1.0, 1.1 and 2.

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use edge_router_tests::engine::Fault;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::sse::{EventBuffer, Transcript};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::load::{CHAT, chat};

fn said(stream: &[u8]) -> Transcript {
    Transcript::of_events(&EventBuffer::default().push(stream))
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_streams_and_whole_answers() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    for turn in [0, 1] {
        let body = chat(turn).to_string();
        let length = body.len();
        let request = format!(
            "POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let answer = router.client().raw(request.as_bytes()).await?.ok()?;
        assert_eq!(answer.header("transfer-encoding"), None);
        let streamed = turn == 0;
        let said = if streamed { said(&answer.body) } else { answer.transcript() };
        assert_eq!((said.text(), said.done), (fleet.baseline(CHAT, &chat(turn)).await?.text(), true));
        assert_eq!(answer.header("content-length").is_none(), streamed);
    }
    Ok(())
}

/// One connection with prior knowledge of HTTP/2; it lives as long as the set.
async fn http2(address: &str) -> Result<(SendRequest<Full<Bytes>>, JoinSet<()>)> {
    let tcp = TcpStream::connect(address).await?;
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(tcp)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    Ok((sender, driver))
}

async fn post(
    sender: &SendRequest<Full<Bytes>>,
    address: &str,
    body: &serde_json::Value,
) -> Result<Response<Incoming>> {
    let request = Request::post(format!("http://{address}{CHAT}"))
        .header("content-type", "application/json")
        .header("te", "trailers")
        .body(Full::from(body.to_string()))?;
    let mut sender = sender.clone();
    sender.ready().await?;
    Ok(sender.send_request(request).await?)
}

async fn read(mut body: Incoming) -> Result<Bytes> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        bytes.extend_from_slice(&frame?.into_data().unwrap_or_default());
    }
    Ok(bytes.freeze())
}

#[tokio::test]
async fn http_2_carries_many_requests_on_one_connection() -> Result<()> {
    let fleet = Fleet::start(2, 2).await?;
    let router = fleet.router().start().await?;
    let (sender, _driver) = http2(router.address()).await?;
    let mut requests = JoinSet::new();
    for turn in 0..20 {
        let (sender, address) = (sender.clone(), router.address().to_owned());
        requests.spawn(async move {
            let answer = post(&sender, &address, &chat(turn)).await?;
            anyhow::ensure!(answer.status() == 200);
            for name in ["connection", "transfer-encoding", "keep-alive"] {
                anyhow::ensure!(!answer.headers().contains_key(name), "{name}");
            }
            anyhow::ensure!(answer.headers().contains_key("content-length") != turn.is_multiple_of(2));
            Ok((turn, read(answer.into_body()).await?))
        });
    }
    while let Some(answered) = requests.join_next().await {
        let (turn, bytes) = answered??;
        let said =
            if turn % 2 == 0 { said(&bytes) } else { Transcript::of_body(&serde_json::from_slice(&bytes)?) };
        assert_eq!((said.text(), said.done), (fleet.baseline(CHAT, &chat(turn)).await?.text(), true));
    }
    // HTTP/2's own headers stay on this side.
    for leg in fleet.decode.iter().flat_map(edge_router_tests::engine::Engine::requests) {
        assert_eq!((leg.header("te"), leg.path.as_str()), (None, CHAT));
    }
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn over_http_2_a_cut_stream_and_a_client_that_leaves_are_seen_as_well() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let (sender, _driver) = http2(router.address()).await?;
    fleet.decode[0].fault(Fault::cut_after(2).on_decode());
    let mut body = post(&sender, router.address(), &chat(0)).await?.into_body();
    let mut bytes = BytesMut::new();
    let broken = loop {
        match body.frame().await {
            Some(Ok(frame)) => bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    let cut = said(&bytes);
    assert!(broken && !cut.done);
    assert_eq!(cut.error.context("no last words")?["code"], "engine_answer_cut");

    fleet.decode[0].fault(Fault::stall_after(1).on_decode());
    let mut body = post(&sender, router.address(), &chat(0)).await?.into_body();
    assert!(body.frame().await.is_some());
    drop(body);
    let decode = &fleet.decode[0];
    let aborted = || decode.requests().last().is_some_and(edge_router_tests::engine::Request::aborted);
    edge_router_tests::patience::eventually("decode is aborted", aborted).await?;
    // The connection is good for another request.
    assert_eq!(post(&sender, router.address(), &chat(1)).await?.status(), 200);
    fleet.assert_quiescent().await;
    Ok(())
}
