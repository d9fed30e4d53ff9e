//! Shutting down: what runs may end, nothing new begins, and what has to be cut is seen to be cut.

use anyhow::Result;
use edge_router_tests::client::Client;
use edge_router_tests::engine::Fault;
use edge_router_tests::fleet::Fleet;
use http::Request;
use http_body_util::Full;
use tokio::time::Duration;

use crate::load::{CHAT, chat};

#[tokio::test]
async fn a_running_stream_ends_as_it_would_have() -> Result<()> {
    let fleet = Fleet::start_with(1, 1, |engine| engine.token_delay(Duration::from_millis(40))).await?;
    let mut router = fleet.router().arg("--drain-delay-s").arg("2").start().await?;
    let mut body = chat(0);
    // Longer than the delay: when it ends, nobody listens any more.
    body["max_tokens"] = 60.into();
    let expected = fleet.baseline(CHAT, &body).await?;
    let mut idle = router.client().connect().await?;
    let models = || Request::get("/v1/models").header("host", router.address()).body(Full::default());
    assert_eq!(idle.exchange(models()?).await?.status, 200);
    let mut stream = router.stream(CHAT, &body).await?;
    assert!(stream.next_event().await?.is_some());

    router.terminate().await?;
    router.wait_for_log("shutting down").await?;
    let ready = router.get("/readyz").await?;
    assert_eq!((ready.status, &*ready.text()), (503, "shutting down\n"));
    assert_eq!(router.get("/health").await?.status, 200);
    for refused in [router.post_json(CHAT, &chat(1)).await?, idle.exchange(models()?).await?] {
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
        assert_eq!(refused.json()["error"]["code"], "shutting_down");
    }
    idle.closed().await?;
    let said = stream.transcript().await?;
    assert_eq!((said.text(), said.done), (expected.text(), true));
    let address = router.address().to_owned();
    assert_eq!(router.exited().await?.code(), Some(0));
    assert!(Client::new(&address).get("/health").await.is_err());
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_request_between_its_legs_ends_as_it_would_have() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let mut router = fleet.router().start().await?;
    fleet.prefill[0].fault(Fault::delay(Duration::from_millis(600)).on_prefill());
    let client = router.client();
    let request = tokio::spawn(async move { client.post_json(CHAT, &chat(1)).await });
    edge_router_tests::patience::eventually("prefill is at it", || !fleet.prefill[0].requests().is_empty())
        .await?;
    router.terminate().await?;
    let answer = request.await??.ok()?;
    assert_eq!(answer.transcript().text(), fleet.baseline(CHAT, &chat(1)).await?.text());
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(router.exited().await?.code(), Some(0));
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn a_stream_that_outlives_the_time_is_cut_and_seen_to_be_cut() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let mut router = fleet.router().arg("--drain-timeout-s").arg("1").start().await?;
    fleet.decode[0].fault(Fault::stall_after(2).on_decode());
    let mut stream = router.stream(CHAT, &chat(0)).await?;
    assert!(stream.next_event().await?.is_some());
    router.terminate().await?;
    let mut done = false;
    let broken = loop {
        match stream.next_event().await {
            Ok(Some(arrival)) => done |= arrival.event.is_done(),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(broken && !done, "it looks as if all had been said");
    assert_eq!(router.exited().await?.code(), Some(0));
    assert!(router.log().iter().any(|line| line.contains("were cut")));
    fleet.assert_quiescent().await;
    edge_router_tests::patience::eventually("it is aborted", || fleet.decode[0].requests()[0].aborted())
        .await?;
    Ok(())
}

#[tokio::test]
async fn whoever_asks_twice_does_not_wait() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let mut router = fleet.router().arg("--drain-timeout-s").arg("3600").start().await?;
    fleet.decode[0].fault(Fault::stall_after(1).on_decode());
    let mut stream = router.stream(CHAT, &chat(0)).await?;
    stream.next_event().await?;
    router.terminate().await?;
    router.wait_for_log("shutting down").await?;
    router.terminate().await?;
    assert_eq!(router.exited().await?.code(), Some(1));
    Ok(())
}
