//! Each fault, as a client sees it.

use std::time::Duration;

use anyhow::Result;
use edge_router_tests::client::{Client, Stream};
use edge_router_tests::engine::{End, Engine, Fault};
use edge_router_tests::patience::eventually;
use edge_router_tests::sse::{Event, EventBuffer};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{CHAT, COMPLETIONS, completion, cut_down};

/// An engine with one fault set, and a client for it.
async fn broken(fault: Fault) -> Result<(Engine, Client)> {
    let engine = Engine::both().start().await?;
    engine.fault(fault);
    let client = Client::new(&engine.address());
    Ok((engine, client))
}

fn streamed() -> Value {
    json!({ "prompt": "tell me", "max_tokens": 8, "stream": true })
}

/// Reads a stream that breaks, and returns how many events came before.
async fn until_broken(mut stream: Stream) -> Result<usize> {
    let mut events = 0;
    loop {
        match stream.next_event().await {
            Ok(Some(_)) => events += 1,
            Ok(None) => anyhow::bail!("ended regularly after {events} events"),
            Err(_) => return Ok(events),
        }
    }
}

#[tokio::test]
async fn statuses_come_with_headers_and_once() -> Result<()> {
    let fault = Fault::status(503).header("retry-after", "1").json(&json!({ "error": "scaling" }));
    let (_engine, client) = broken(fault).await?;
    let answer = client.post_json(COMPLETIONS, &completion("hi")).await?;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert_eq!(answer.json(), json!({ "error": "scaling" }));
    assert_eq!(client.post_json(COMPLETIONS, &completion("hi")).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn steps_are_told_apart() -> Result<()> {
    let (engine, client) = broken(Fault::status(500).on_prefill().always()).await?;
    assert_eq!(client.post_json(COMPLETIONS, &completion("hi")).await?.status, 200);
    assert_eq!(client.post_json(COMPLETIONS, &cut_down("hi")).await?.status, 500);
    assert_eq!(client.post_json(COMPLETIONS, &cut_down("hi")).await?.status, 500);
    engine.clear_faults();
    engine.fault(Fault::status(503).on_path("/health").times(2));
    for status in [503, 503, 200] {
        assert_eq!(client.get("/health").await?.status, status);
    }
    Ok(())
}

#[tokio::test]
async fn a_connection_closes_before_the_headers() -> Result<()> {
    let (engine, client) = broken(Fault::close_before_headers()).await?;
    assert!(client.stream(COMPLETIONS, &streamed()).await.is_err());
    eventually("it is over", || engine.requests()[0].end == Some(End::Cut)).await
}

#[tokio::test]
async fn a_connection_closes_after_the_headers() -> Result<()> {
    let (_engine, client) = broken(Fault::close_after_headers().times(2)).await?;
    let stream = client.stream(COMPLETIONS, &streamed()).await?;
    assert_eq!((stream.status, until_broken(stream).await?), (200, 0));
    let whole = client.stream(COMPLETIONS, &completion("hi")).await?;
    assert_eq!(whole.status, 200);
    assert!(whole.whole().await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_stream_is_cut() -> Result<()> {
    let (engine, client) = broken(Fault::cut_after(3)).await?;
    assert_eq!(until_broken(client.stream(COMPLETIONS, &streamed()).await?).await?, 3);
    eventually("it is over", || engine.requests()[0].end == Some(End::Cut)).await
}

#[tokio::test]
async fn a_stream_stalls_until_the_client_goes() -> Result<()> {
    let (engine, client) = broken(Fault::stall_after(2)).await?;
    let mut stream = client.stream(COMPLETIONS, &streamed()).await?;
    for _ in 0..2 {
        assert!(stream.next_event().await?.is_some());
    }
    assert!(tokio::time::timeout(Duration::from_millis(50), stream.next_event()).await.is_err());
    assert_eq!(engine.requests()[0].end, None);
    drop(stream);
    eventually("it is over", || engine.requests()[0].aborted()).await
}

#[tokio::test]
async fn a_request_hangs_until_the_client_goes() -> Result<()> {
    let (engine, client) = broken(Fault::hang()).await?;
    let body = completion("hi");
    tokio::select! {
        _ = client.post_json(COMPLETIONS, &body) => panic!("answered"),
        seen = eventually("it is there", || !engine.requests().is_empty()) => seen?,
    }
    eventually("it is over", || engine.requests()[0].aborted()).await
}

#[tokio::test]
async fn bytes_arrive_in_any_pieces() -> Result<()> {
    let engine = Engine::both().start().await?;
    let client = Client::new(&engine.address());
    let expected = client.stream(COMPLETIONS, &streamed()).await?.transcript().await?;
    for fault in [Fault::one_byte_writes(), Fault::reframe(1), Fault::reframe(2)] {
        engine.fault(fault);
        let mut stream = client.stream(COMPLETIONS, &streamed()).await?;
        let (mut events, mut split, mut buffer) = (Vec::<Event>::new(), false, EventBuffer::default());
        while let Some(bytes) = stream.next_bytes().await? {
            events.extend(buffer.push(&bytes));
            split |= !buffer.rest().is_empty();
        }
        assert!(split, "every piece ended with an event");
        let transcript = edge_router_tests::sse::Transcript::of_events(&events);
        assert_eq!((transcript.choices, transcript.done), (expected.choices.clone(), true));
    }
    engine.fault(Fault::one_byte_writes());
    assert_eq!(
        client
            .post_json(COMPLETIONS, &completion("hi"))
            .await?
            .ok()?
            .transcript()
            .tokens("completion_tokens"),
        Some(12)
    );
    Ok(())
}

#[tokio::test]
async fn frames_are_slow() -> Result<()> {
    let (_engine, client) = broken(Fault::slow_frames(Duration::from_millis(5))).await?;
    let start = Instant::now();
    let events = client.stream(COMPLETIONS, &streamed()).await?.events().await?;
    for (number, arrival) in (1..).zip(&events) {
        assert!(arrival.at - start >= number * Duration::from_millis(5));
    }
    Ok(())
}

#[tokio::test]
async fn comments_come_between_events() -> Result<()> {
    let (_engine, client) = broken(Fault::keep_alive_comments()).await?;
    let events = client.stream(COMPLETIONS, &streamed()).await?.events().await?;
    assert_eq!(events.iter().filter(|arrival| arrival.event.comments == ["keep-alive"]).count(), 9);
    Ok(())
}

#[tokio::test]
async fn a_failure_comes_after_the_role() -> Result<()> {
    let (engine, client) = broken(Fault::error_event().times(2)).await?;
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 4, "stream": true });
    let events = client.stream(CHAT, &chat).await?.events().await?;
    assert_eq!(events[0].event.json()["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events[1].event.json()["error"]["code"], 500);
    assert!(events[2].event.is_done());
    assert_eq!(client.post_json(COMPLETIONS, &completion("hi")).await?.status, 500);
    engine.fault(Fault::error_after(2));
    let transcript = client.stream(COMPLETIONS, &streamed()).await?.transcript().await?;
    assert_eq!(transcript.choices[&0].pieces, 2);
    assert!(transcript.error.is_some());
    Ok(())
}

#[tokio::test]
async fn a_generation_ends_early() -> Result<()> {
    let (engine, client) = broken(Fault::finish_with_stop()).await?;
    let transcript = client.stream(COMPLETIONS, &streamed()).await?.transcript().await?;
    assert_eq!(
        (transcript.choices[&0].finish_reason.as_deref(), transcript.choices[&0].pieces),
        (Some("stop"), 1)
    );
    engine.fault(Fault::abort_after(3));
    let transcript = client.stream(COMPLETIONS, &streamed()).await?.transcript().await?;
    assert_eq!(
        (transcript.choices[&0].finish_reason.as_deref(), transcript.choices[&0].pieces),
        (Some("abort"), 3)
    );
    assert!(transcript.done);
    Ok(())
}

#[tokio::test]
async fn prefill_says_odd_things_about_its_blocks() -> Result<()> {
    let engine = Engine::prefill().start().await?;
    let client = Client::new(&engine.address());
    let partial = json!({ "do_remote_prefill": true, "remote_engine_id": "x" });
    for (params, pinned) in [(Value::Null, 0), (json!({}), 0), (partial, 1)] {
        engine.fault(Fault::kv_params(params.clone()));
        let answer = client.post_json(COMPLETIONS, &cut_down("hi")).await?.ok()?;
        assert_eq!(answer.json()["kv_transfer_params"], params);
        assert_eq!(engine.pinned(), pinned);
    }
    Ok(())
}

#[tokio::test]
async fn answers_are_late() -> Result<()> {
    let (_engine, client) = broken(Fault::delay(Duration::from_millis(60))).await?;
    let start = Instant::now();
    client.post_json(COMPLETIONS, &completion("hi")).await?.ok()?;
    assert!(start.elapsed() >= Duration::from_millis(60));
    Ok(())
}

#[tokio::test]
async fn what_is_held_goes_on_when_the_faults_are_cleared() -> Result<()> {
    let (engine, client) = broken(Fault::hold()).await?;
    engine.fault(Fault::status(503));
    let release = async {
        eventually("it is held", || engine.held() == 1).await?;
        engine.clear_faults();
        anyhow::Ok(())
    };
    let body = completion("hi");
    let (answer, ()) = tokio::try_join!(client.post_json(COMPLETIONS, &body), release)?;
    assert_eq!((answer.status, engine.held()), (503, 0));
    assert_eq!(client.post_json(COMPLETIONS, &completion("hi")).await?.status, 200);
    Ok(())
}
