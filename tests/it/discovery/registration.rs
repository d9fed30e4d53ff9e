//! `--registration-listen`: engines that announce themselves over ZeroMQ, as MoRIIO does.

use std::time::Duration;

use anyhow::{Context, Result};
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::{Router, RouterBuilder};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use zeromq::{DealerSocket, Socket as _, SocketSend as _, ZmqMessage};

use super::{consists_of, until};
use crate::load::{all_right, all_right_during};

/// The messages of an engine, sent again and again until it is dropped.
struct Heart(JoinHandle<Result<()>>);

impl Heart {
    fn beats(port: &str, message: Value) -> Self {
        let endpoint = format!("tcp://{port}");
        Self(tokio::spawn(async move {
            let mut dealer = DealerSocket::new();
            dealer.connect(&endpoint).await?;
            loop {
                dealer.send(ZmqMessage::from(rmp_serde::to_vec_named(&message)?)).await?;
                sleep(Duration::from_millis(200)).await;
            }
        }))
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn moriio(kind: &str, address: &str, dp_size: u32) -> Value {
    json!({
        "type": kind,
        "http_address": address,
        "zmq_address": "host:127.0.0.1,handshake:6301,notify:61005",
        "dp_size": dp_size,
        "tp_size": 1,
        "transfer_mode": "READ",
    })
}

/// A router without instances, and where engines register.
async fn waiting(router: RouterBuilder) -> Result<(Router, String)> {
    let router = router.arg("--registration-listen").arg("127.0.0.1:0").no_wait().start().await?;
    let line = router.wait_for_log("engines may register on ").await?;
    let (_, port) = line.rsplit_once(' ').context("no address")?;
    Ok((router, port.to_owned()))
}

#[tokio::test]
async fn engines_come_and_go_by_their_heartbeats() -> Result<()> {
    let fleet = Fleet::start(1, 2).await?;
    let (router, port) = waiting(Router::builder().arg("--registration-ttl-s").arg("6")).await?;
    let [prefill, first, second] =
        [&fleet.prefill[0], &fleet.decode[0], &fleet.decode[1]].map(|e| e.address());
    let _stay = [Heart::beats(&port, moriio("P", &prefill, 1)), Heart::beats(&port, moriio("D", &first, 1))];
    let goes = Heart::beats(&port, moriio("D", &second, 1));
    let instances = consists_of(&router, [&prefill, &first, &second]).await?;
    let labels =
        json!({ "transfer_mode": "READ", "zmq_address": "host:127.0.0.1,handshake:6301,notify:61005" });
    for instance in &instances {
        let mut labels = labels.clone();
        if instance["address"] == *prefill {
            labels["kv_lease_s"] = json!("60");
        }
        assert_eq!((&instance["labels"], &instance["sources"]), (&labels, &json!(["registration"])));
    }
    let leaving = async {
        drop(goes);
        consists_of(&router, [&prefill, &first]).await.map(drop)
    };
    all_right_during(&fleet, &router, leaving).await?;
    assert_eq!(router.metrics().await?.sum("edge_router_retries_total", &[]), 0.0);
    fleet.assert_quiescent().await;
    Ok(())
}

#[tokio::test]
async fn an_engine_that_comes_back_as_another_is_another_instance() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let (router, port) = waiting(Router::builder()).await?;
    let (prefill, decode) = (fleet.prefill[0].address(), fleet.decode[0].address());
    let _decode = Heart::beats(&port, moriio("D", &decode, 1));
    let before = Heart::beats(&port, moriio("P", &prefill, 1));
    let find = |instances: Vec<Value>| instances.into_iter().find(|i| i["address"] == *prefill);
    let known = find(consists_of(&router, [&prefill, &decode]).await?).context("it is there")?;
    drop(before);
    let _after = Heart::beats(&port, moriio("P", &prefill, 4));
    until("it is another", async || {
        let now = find(consists_of(&router, [&prefill, &decode]).await?).context("it is there")?;
        Ok(now["dp_size"] == 4 && now["id"] != known["id"])
    })
    .await?;
    all_right(&fleet, &router, 4, 2).await
}

#[tokio::test]
async fn what_makes_no_sense_is_counted_and_the_rest_goes_on() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let (router, port) = waiting(fleet.router()).await?;
    let (prefill, decode) = (fleet.prefill[0].address(), fleet.decode[0].address());
    consists_of(&router, [&prefill, &decode]).await?;
    let mut dealer = DealerSocket::new();
    dealer.connect(&format!("tcp://{port}")).await?;
    for message in [vec![0xc1; 100], vec![], rmp_serde::to_vec_named(&json!({ "type": "X" }))?] {
        dealer.send(ZmqMessage::from(message)).await?;
    }
    let said = router.wait_for_log("registration refused").await?;
    assert!(said.contains("127.0.0.1"), "{said}");
    let _heart = Heart::beats(&port, moriio("P", &prefill, 1));
    until("two sources announce it", async || {
        let instances = consists_of(&router, [&prefill, &decode]).await?;
        Ok(instances.iter().any(|i| i["sources"] == json!(["config", "registration"])))
    })
    .await?;
    let refused =
        async |n| Ok(router.metrics().await?.sum("edge_router_registrations_refused_total", &[]) == n);
    until("all three are refused", async || refused(3.0).await).await?;
    // More than a message may have: the connection ends, the router does not.
    dealer.send(ZmqMessage::from(vec![0; 1 << 20])).await?;
    until("it is refused", async || refused(4.0).await).await?;
    all_right(&fleet, &router, 4, 2).await
}
