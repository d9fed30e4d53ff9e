use std::convert::Infallible;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::StreamBody;
use proptest::prelude::*;
use tokio::time::{Instant, sleep, timeout};

use super::*;

const ROLE: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null}\n\n";
const WORD: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n";
const ERROR: &str =
    "data: {\"error\": {\"message\": \"Internal server error\", \"code\": 500}}\n\ndata: [DONE]\n\n";
const COMMENT: &str = ": keep-alive\n\n";

/// The verdict on `text` in pieces of these sizes, the last of which is the rest.
fn verdict(text: &str, cuts: &[usize]) -> Verdict {
    let (mut opening, mut rest) = (Opening::default(), text.as_bytes());
    for cut in cuts {
        let (piece, after) = rest.split_at((*cut).min(rest.len()));
        let verdict = opening.push(piece);
        if verdict != Verdict::Silent {
            return verdict;
        }
        rest = after;
    }
    opening.push(rest)
}

fn fails(status: u16, json: &'static str) -> Verdict {
    Verdict::Fails {
        status: StatusCode::from_u16(status).unwrap(),
        json: Bytes::from_static(json.as_bytes()),
    }
}

#[test]
fn comments_roles_and_empty_deltas_say_nothing() {
    for silent in [
        COMMENT,
        ROLE,
        "event: message\nid: 7\nretry: 10\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{}}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":null,\"tool_calls\":[]}}],\"usage\":{\"prompt_tokens\":5}}\r\n\r\n",
        "data: {\"choices\":[{\"index\":0,\"text\":\"\"}]}\n",
        "data: {\"choices\":[{\"index\":0,\"text\":\"not the end of a line\"}]}",
    ] {
        assert_eq!(verdict(silent, &[]), Verdict::Silent, "{silent}");
    }
}

#[test]
fn everything_else_is_a_word() {
    for word in [
        WORD,
        "data: {\"choices\":[{\"index\":0,\"text\":\" \"}]}\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm\"}}]}\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{}},{\"index\":1,\"delta\":{\"content\":\"b\"}}]}\n",
        "data: {\"choices\":[{\"index\":0,\"token_ids\":[7]}]}\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5}}\n",
        "data: {\"choices\":7}\n",
        "data: [DONE]\n",
        "data: plain text\n",
        "data:\n",
    ] {
        assert_eq!(verdict(word, &[]), Verdict::Speaks, "{word}");
    }
}

#[test]
fn an_error_keeps_its_status_if_it_has_one() {
    for (text, expected) in [
        ("data: {\"error\":{\"code\":503}}\n", fails(503, "{\"error\":{\"code\":503}}")),
        ("data:{\"error\":{\"code\":400}}\r\n", fails(400, "{\"error\":{\"code\":400}}")),
        ("data: {\"error\":{\"code\":200}}\n", fails(500, "{\"error\":{\"code\":200}}")),
        ("data: {\"error\":{\"code\":70000}}\n", fails(500, "{\"error\":{\"code\":70000}}")),
        ("data: {\"error\":\"dead\"}\n", fails(500, "{\"error\":\"dead\"}")),
    ] {
        assert_eq!(verdict(text, &[]), expected, "{text}");
    }
    assert_eq!(verdict("data: {\"error\":null,\"choices\":[{\"index\":0}]}\n", &[]), Verdict::Silent);
}

#[test]
fn the_first_thing_said_decides() {
    assert_eq!(verdict(&[WORD, ERROR].concat(), &[]), Verdict::Speaks);
    assert!(matches!(verdict(&[COMMENT, ROLE, ERROR].concat(), &[]), Verdict::Fails { .. }));
}

#[test]
fn a_role_says_nothing_however_long_the_prompt_whose_tokens_it_names() {
    let ids = format!("[{}]", vec!["123456"; 200_000].join(","));
    let role = ROLE.replace("\"prompt_token_ids\":null", &format!("\"prompt_token_ids\":{ids}"));
    for (said, expected) in [("", Verdict::Silent), (WORD, Verdict::Speaks)] {
        let mut opening = Opening::new(true);
        let verdicts = [role.as_str(), said].concat();
        let verdict = verdicts.as_bytes().chunks(16 * 1024).map(|piece| opening.push(piece)).last();
        assert_eq!(verdict, Some(expected));
    }
    assert_eq!(verdict(&role, &[100_000]), Verdict::Speaks, "nobody asked for them");
}

proptest! {
    #[test]
    fn the_verdict_is_the_same_however_the_bytes_are_cut(
        events in prop::collection::vec(prop::sample::select(vec![COMMENT, ROLE, WORD, ERROR]), 0..8),
        cuts in prop::collection::vec(0usize..90, 0..30),
    ) {
        let text = events.concat();
        prop_assert_eq!(verdict(&text, &cuts), verdict(&text, &[]));
    }

    #[test]
    fn what_comes_too_late_to_be_held_does_not_count(
        room in 0usize..200,
        last in prop::sample::select(vec![WORD, ERROR]),
        cuts in prop::collection::vec(1usize..20_000, 0..12),
    ) {
        let text = format!(": {}\n\n{last}{COMMENT}", "x".repeat(MAX_HELD - room));
        prop_assert_eq!(verdict(&text, &cuts), verdict(&text, &[]));
    }
}

async fn heard(frames: impl Stream<Item = String>, limit: Duration) -> Heard {
    let frames = frames.map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from(text))));
    let mut body = StreamBody::new(Box::pin(frames));
    let mut heard = Heard::default();
    // Given up, it has what came until then.
    timeout(limit, heard.listen(&mut body)).await.unwrap_or(Ok(())).unwrap();
    heard
}

const LIMIT: Duration = Duration::from_millis(250);

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_silent_is_not_waited_for_beyond_the_limit() {
    let began = Instant::now();
    let heard = heard(stream::iter([ROLE.to_owned()]).chain(stream::pending()), LIMIT).await;
    assert_eq!((&heard.opening.held[..], heard.ended), (ROLE.as_bytes(), false));
    assert_eq!(heard.verdict, Verdict::Silent);
    assert_eq!(began.elapsed(), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn comments_do_not_prolong_the_limit() {
    let began = Instant::now();
    let comments = stream::unfold((), |()| async {
        sleep(Duration::from_millis(100)).await;
        Some((COMMENT.to_owned(), ()))
    });
    let heard = heard(comments, LIMIT).await;
    assert_eq!(&heard.opening.held[..], COMMENT.repeat(2).as_bytes());
    assert_eq!(began.elapsed(), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_word_ends_the_wait_at_once() {
    let began = Instant::now();
    let frames = [ROLE, WORD].map(str::to_owned);
    let heard = heard(stream::iter(frames).chain(stream::pending()), LIMIT).await;
    assert_eq!(&heard.opening.held[..], [ROLE, WORD].concat().as_bytes());
    assert_eq!((heard.verdict, began.elapsed()), (Verdict::Speaks, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_is_waited_for_no_longer() {
    let began = Instant::now();
    let heard = heard(stream::iter([ROLE.to_owned()]), LIMIT).await;
    assert!(heard.ended && heard.opening.held == ROLE);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_comments_is_held_up_to_a_bound() {
    let flood = stream::repeat(format!(": {}\n\n", "x".repeat(1000)));
    let heard = heard(flood, LIMIT).await;
    assert_eq!(heard.verdict, Verdict::Speaks);
    assert!(heard.opening.held.len() > MAX_HELD && heard.opening.held.len() < MAX_HELD + 1100);
}
