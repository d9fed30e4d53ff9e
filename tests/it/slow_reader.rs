//! Clients that read slowly, or not at all: the engine waits for them, and nobody else does.

use anyhow::{Result, ensure};
use edge_router_tests::client::Stream;
use edge_router_tests::engine::{Engine, Fault, Request};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::patience::eventually;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use crate::in_flight::settled;
use crate::load::{CHAT, COMPLETIONS, chat};

const READERS: usize = 4;
/// A comment before each event: one answer is far more than the system's own buffers take, some 10 MB.
const PADDING: usize = 256 * 1024;
const TOKENS: usize = 150;
/// What all readers together may cost the router: a few frames each, and what the allocator does not give back at
/// once. Were the answers buffered it would be twice as much and more.
const BUDGET: u64 = READERS as u64 * (16 << 20);

fn long_story() -> Value {
    json!({ "model": "sim", "prompt": "tell me all of it", "max_tokens": TOKENS, "stream": true })
}

/// Waits until the engine gets rid of nothing more; how many frames went out.
async fn comes_to_a_halt(engine: &Engine) -> usize {
    let frames = || engine.requests().iter().map(|request| request.frames).sum::<usize>();
    let (mut before, mut same) = (frames(), 0);
    while same < 10 {
        sleep(Duration::from_millis(20)).await;
        let now = frames();
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
    before
}

#[tokio::test]
async fn an_engine_waits_for_readers_that_have_stopped() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().start().await?;
    let decode = &fleet.decode[0];
    let expected = fleet.baseline(COMPLETIONS, &long_story()).await?;
    router.stream(CHAT, &chat(0)).await?.transcript().await?;
    let before = router.rss_bytes()?;
    decode.fault(Fault::padded_frames(PADDING).on_decode().times(READERS as u32));
    let mut readers: Vec<Stream> = Vec::new();
    for _ in 0..READERS {
        let client = router.client().receive_buffer(16 * 1024);
        let mut stream = client.stream(COMPLETIONS, &long_story()).await?;
        // The comment before the first token.
        ensure!(stream.next_event().await?.is_some());
        readers.push(stream);
    }
    let sent = comes_to_a_halt(decode).await;
    assert!(sent < READERS * TOKENS, "{sent} frames of {} went somewhere", READERS * TOKENS * 2);
    let held = router.rss_bytes()?.saturating_sub(before);
    assert!(held < BUDGET, "{held} bytes are held for {READERS} readers that have stopped");
    // Others are served meanwhile.
    for turn in 0..4 {
        router.stream(CHAT, &chat(turn)).await?.whole().await?.ok()?;
    }
    // One goes on and gets everything, the others leave.
    let said = readers.pop().expect("a reader").transcript().await?;
    assert_eq!((said.text(), said.done), (expected.text(), true));
    drop(readers);
    fleet.assert_quiescent().await;
    settled(&router).await?;
    Ok(())
}

#[tokio::test]
async fn a_reader_that_has_stopped_for_too_long_is_let_go_and_its_engine_stops() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = fleet.router().arg("--client-stall-timeout-s").arg("1").start().await?;
    fleet.decode[0].fault(Fault::padded_frames(PADDING).on_decode());
    let client = router.client().receive_buffer(16 * 1024);
    let mut stopped = client.stream(COMPLETIONS, &long_story()).await?;
    ensure!(stopped.next_event().await?.is_some());
    // It stays connected, and reads no more.
    let decode = &fleet.decode[0];
    eventually("decode is aborted", || decode.requests().iter().all(Request::aborted)).await?;
    fleet.assert_quiescent().await;
    settled(&router).await?;
    drop(stopped);
    Ok(())
}
