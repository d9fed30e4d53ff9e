use super::*;
use crate::connectors::golden::{assert_leg, edited, golden, set_value};
use crate::{InstanceId, testing};

const CHAT: &str = "/v1/chat/completions";
const READ_ANSWER: &str = golden!("moriio_read/prefill_answer");
const WRITE_ANSWER: &str = golden!("moriio_write/prefill_answer");

/// As in the golden files, which were written for the request `request-1`.
fn peer(host: &str, mode: Mode, dp_size: u32, tp_size: u32) -> Peer {
    Peer {
        address: format!("{host}:8000"),
        host: host.to_owned(),
        handshake_port: 6301,
        notify_port: 61005,
        mode,
        dp_size,
        tp_size,
    }
}

type Ranks = (Option<u32>, Option<u32>);

fn at(instance: InstanceId, dp_rank: Option<u32>) -> Placement {
    Placement { instance, dp_rank }
}

fn with_pinned<T>(mode: Mode, ranks: Ranks, test: impl FnOnce(Transfer<'_>) -> T) -> T {
    let (prefill, decode) = (peer("10.0.0.1", mode, 2, 1), peer("10.0.0.2", mode, 2, 4));
    test(Transfer::new("request-1", (at(7, ranks.0), &prefill), (at(8, ranks.1), &decode)).unwrap())
}

fn with_transfer<T>(mode: Mode, test: impl FnOnce(Transfer<'_>) -> T) -> T {
    with_pinned(mode, (None, None), test)
}

fn decode_params(mode: Mode, answer: &str, ranks: Ranks) -> Value {
    let leg = with_pinned(mode, ranks, |transfer| transfer.decode_leg(answer)).unwrap();
    edited("{}", &leg)["kv_transfer_params"].clone()
}

fn refusal(mode: Mode, answer: &str) -> Refused {
    with_transfer(mode, |transfer| transfer.decode_leg(answer)).unwrap_err()
}

#[test]
fn the_golden_legs_of_read() {
    let client = golden!("moriio_read/client");
    let request = testing::request(CHAT).json(client);
    with_transfer(Mode::Read, |transfer| {
        assert_leg(client, &transfer.prefill_leg(&request.as_request()), golden!("moriio_read/prefill_leg"));
        let leg = transfer.decode_leg(READ_ANSWER).unwrap();
        assert_leg(client, &leg, golden!("moriio_read/decode_leg"));
        let sent = set_value(&leg, KV_TRANSFER_PARAMS).unwrap();
        assert!(sent.starts_with(READ_ANSWER.trim_end_matches('}')), "prefill's own text: {sent}");
    });
}

#[test]
fn the_golden_legs_of_write() {
    let client = golden!("moriio_write/client");
    let request = testing::request("/v1/completions").json(client);
    with_transfer(Mode::Write, |transfer| {
        assert_leg(client, &transfer.prefill_leg(&request.as_request()), golden!("moriio_write/prefill_leg"));
        let leg = transfer.decode_leg(WRITE_ANSWER).unwrap();
        assert_leg(client, &leg, golden!("moriio_write/decode_leg"));
        let leg = transfer.decode_leg_ahead().unwrap();
        assert_leg(client, &leg, golden!("moriio_write/decode_leg_concurrent"));
    });
}

#[test]
fn read_is_never_started_together() {
    with_transfer(Mode::Read, |transfer| assert_eq!(transfer.decode_leg_ahead(), None));
}

#[test]
fn in_write_mode_a_prefill_leg_of_several_ranks_is_pinned_and_decode_told_where() {
    let request = testing::request(CHAT).json("{}");
    let told = |mode, ranks| {
        with_pinned(mode, ranks, |transfer| {
            let header = transfer.prefill_leg(&request.as_request()).headers.pop().map(|(_, rank)| rank);
            let ahead = transfer.decode_leg_ahead();
            (header, ahead.map(|leg| edited("{}", &leg)["kv_transfer_params"].clone()))
        })
    };
    assert_eq!(told(Mode::Read, (None, None)).0, None);
    let (header, params) = told(Mode::Write, (None, None));
    let (rank, params) = (header.unwrap(), params.unwrap());
    assert_eq!(params["remote_dp_rank"].to_string(), rank);
    assert_eq!(params["remote_dp_rank_override"], false, "nobody knows where decode runs");
    for (ranks, one) in [((Some(1), Some(1)), true), ((Some(1), Some(0)), false), ((Some(1), None), false)] {
        let (header, params) = told(Mode::Write, ranks);
        let params = params.unwrap();
        assert_eq!((header.as_deref(), &params["remote_dp_rank"]), (Some("1"), &json!(1)), "{ranks:?}");
        assert_eq!(params["remote_dp_rank_override"], one, "{ranks:?}");
    }
}

#[test]
fn the_only_rank_is_neither_pinned_nor_named() {
    let (prefill, decode) = (peer("10.0.0.1", Mode::Write, 1, 8), peer("10.0.0.2", Mode::Write, 2, 1));
    let transfer = Transfer::new("r", (at(1, None), &prefill), (at(2, None), &decode)).unwrap();
    let request = testing::request(CHAT).json("{}");
    assert!(transfer.prefill_leg(&request.as_request()).headers.is_empty());
    let params = edited("{}", &transfer.decode_leg_ahead().unwrap())["kv_transfer_params"].clone();
    assert!(params.get("remote_dp_rank").is_none() && params["remote_tp_size"] == 8);
}

#[test]
fn every_attempt_and_every_prefill_instance_has_a_transfer_of_its_own() {
    let (prefill, decode) = (peer("10.0.0.1", Mode::Read, 1, 1), peer("10.0.0.2", Mode::Read, 1, 1));
    let id = |request: &str, instance| {
        Transfer::new(request, (at(instance, None), &prefill), (at(9, None), &decode)).unwrap().id()
    };
    assert_eq!(id("r", 1), id("r", 1), "both legs agree");
    let ids = std::collections::BTreeSet::from([id("r", 1), id("r-2", 1), id("r", 2), id("s", 1)]);
    assert_eq!(ids.len(), 4);
    assert!(ids.iter().all(|id| id.len() == 35 && id.starts_with("tx-")), "{ids:?}");
}

#[test]
fn the_embedded_request_id_names_both_peers_and_ends_in_32_hex_digits() {
    let id = with_transfer(Mode::Write, |transfer| transfer.request_id());
    let expected = "___prefill_addr_host:10.0.0.1,handshake:6301,notify:61005___decode_addr_host:10.0.0.2,handshake:6301,notify:61005_";
    let key = id.strip_prefix(expected).unwrap();
    assert!(
        key.len() == 32 && key.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
        "{key}"
    );
}

#[test]
fn modes_must_agree() {
    let (prefill, decode) = (peer("10.0.0.1", Mode::Read, 1, 1), peer("10.0.0.2", Mode::Write, 1, 1));
    assert_eq!(
        Transfer::new("r", (at(1, None), &prefill), (at(2, None), &decode)).unwrap_err().to_string(),
        "prefill instance 10.0.0.1:8000 has the label transfer_mode=READ, \
         decode instance 10.0.0.2:8000 WRITE: they can't serve one request"
    );
}

#[test]
fn what_older_engines_leave_out_is_filled_in_from_the_labels() {
    let older =
        r#"{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_host":null}"#;
    let params = decode_params(Mode::Read, older, (Some(1), None));
    let (id, expected) = (params["transfer_id"].as_str().unwrap(), with_transfer(Mode::Read, |t| t.id()));
    assert_eq!(id, expected);
    for (name, value) in [
        ("remote_host", json!("10.0.0.1")),
        ("remote_handshake_port", json!(6301)),
        ("remote_notify_port", json!(61005)),
        ("remote_dp_size", json!(2)),
        ("remote_tp_size", json!(1)),
        ("remote_dp_rank", json!(1)),
    ] {
        assert_eq!(params[name], value, "{name}");
    }
    let write = decode_params(Mode::Write, r#"{"do_remote_prefill":true}"#, (None, None));
    assert!(write["remote_block_ids"].is_null() && write.get("remote_engine_id").is_some());
}

#[test]
fn the_rank_that_prefill_ran_on_counts_and_binds_decode_only_if_it_is_pinned_to_the_same() {
    let of = |ranks| {
        let params = decode_params(Mode::Write, WRITE_ANSWER, ranks);
        (params["remote_dp_rank"].clone(), params["remote_dp_rank_override"].clone())
    };
    assert_eq!(of((Some(1), Some(1))), (json!(1), json!(true)));
    for ranks in [(None, None), (Some(1), None), (Some(1), Some(0)), (Some(0), Some(0))] {
        assert_eq!(of(ranks), (json!(1), json!(false)), "{ranks:?}");
    }
    let (prefill, decode) = (peer("10.0.0.1", Mode::Write, 2, 1), peer("10.0.0.2", Mode::Write, 4, 1));
    let unequal = Transfer::new("request-1", (at(7, Some(1)), &prefill), (at(8, Some(1)), &decode)).unwrap();
    let leg = unequal.decode_leg(WRITE_ANSWER).unwrap();
    assert_eq!(edited("{}", &leg)["kv_transfer_params"]["remote_dp_rank_override"], false);
}

#[test]
fn an_answer_that_decode_could_not_use_is_refused() {
    for (answer, missing) in [
        ("{}".to_owned(), "do_remote_prefill"),
        (READ_ANSWER.replace("[[3,4]]", "[[]]"), "remote_block_ids"),
        (READ_ANSWER.replace("[[3,4]]", "null"), "remote_block_ids"),
        (READ_ANSWER.replace("\"10.0.0.1:6301\"", "null"), "remote_engine_id"),
    ] {
        assert_eq!(refusal(Mode::Read, &answer), Refused::Missing(missing), "{answer}");
    }
    assert!(matches!(refusal(Mode::Read, "[]"), Refused::Malformed(_)));
    let other = READ_ANSWER.replace("\"tx-", "\"tx-0");
    assert!(matches!(refusal(Mode::Read, &other), Refused::OtherTransfer { .. }));
}
