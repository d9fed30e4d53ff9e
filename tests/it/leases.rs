//! A handle is sent only as long as its own prefill instance keeps what it names.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use edge_router_tests::engine::Engine;
use edge_router_tests::fleet::Fleet;
use edge_router_tests::router::{Router, RouterBuilder};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Duration, timeout};

use crate::load::{CHAT, chat};

/// Tables for a configuration file, in which each prefill engine has a label of its own.
fn labelled(fleet: &Fleet, labels: &[&str]) -> String {
    let table = |role: &str, engine: &Engine, label: &str| {
        format!(
            "[[instance]]\nrole = \"{role}\"\naddress = \"{}\"\nlabels = {{ {label} }}\n",
            engine.address()
        )
    };
    let prefill = fleet.prefill.iter().zip(labels).map(|(engine, label)| table("prefill", engine, label));
    let decode = fleet.decode.iter().map(|engine| table("decode", engine, ""));
    prefill.chain(decode).collect()
}

async fn right(fleet: &Fleet, router: &Router, turn: usize) -> Result<()> {
    let said = router.post_json(CHAT, &chat(2 * turn + 1)).await?.ok()?.transcript();
    assert_eq!(said.text(), fleet.baseline(CHAT, &chat(2 * turn + 1)).await?.text());
    Ok(())
}

/// How many handles were too late, and how many were never fetched nor given back.
async fn late(router: &Router) -> Result<(f64, f64)> {
    let metrics = router.metrics().await?;
    let late = metrics.sum("edge_router_fallbacks_total", &["kind=\"late_handle\""]);
    assert_eq!(metrics.sum("edge_router_fallbacks_total", &[]), late, "for no other reason");
    Ok((late, metrics.sum("edge_router_orphaned_handles_total", &[])))
}

#[tokio::test]
async fn each_instance_has_a_lease_of_its_own() -> Result<()> {
    let mut fleet = Fleet::start(3, 1).await?;
    // One that keeps nothing for anybody, one that says so of a margin, and one that says nothing.
    let labels = ["kv_lease_s = \"0\"", "kv_lease_s = \"20\", kv_lease_margin_s = \"1\"", ""];
    let router = Router::builder().config_toml(&labelled(&fleet, &labels)).start().await?;
    for turn in 0..6 {
        right(&fleet, &router, turn).await?;
    }
    assert_eq!(late(&router).await?, (2.0, 2.0));
    let decode = fleet.decode[0].counters();
    assert_eq!((decode.remote_loads, decode.local_prefills), (4, 2));
    let pinned: Vec<usize> = fleet.prefill.iter().map(Engine::pinned).collect();
    assert_eq!(pinned, [2, 0, 0]);
    fleet.expect_pinned(2);
    Ok(())
}

/// A host that answers probes, until it is cut off: then nothing that is sent to it arrives.
struct Host {
    address: String,
    answers: JoinHandle<()>,
    socket: Arc<TcpListener>,
}

impl Host {
    fn start() -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let socket = Arc::new(socket.listen(1)?);
        let (address, accepting) = (socket.local_addr()?.to_string(), Arc::clone(&socket));
        let answers = tokio::spawn(async move {
            while let Ok((mut stream, _)) = accepting.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                    .await;
            }
        });
        Ok(Self { address, answers, socket })
    }

    /// Connections fill its queue up to where the system drops what comes, for as long as they live.
    async fn cut_off(&self) -> Result<Vec<TcpStream>> {
        self.answers.abort();
        let mut queued = Vec::new();
        while let Ok(connected) = timeout(Duration::from_millis(300), TcpStream::connect(&self.address)).await
        {
            queued.push(connected?);
            anyhow::ensure!(queued.len() < 64, "the queue of {:?} is never full", self.socket);
        }
        Ok(queued)
    }
}

/// Two requests, one of which is first sent to a decode instance that can't be reached, which takes 2.5 s to find out.
async fn detour(fleet: &Fleet, label: &str) -> Result<Router> {
    let host = Host::start()?;
    let unreachable = format!("[[instance]]\nrole = \"decode\"\naddress = \"{}\"\n", host.address);
    let router = Router::builder().config_toml(&(unreachable + &labelled(fleet, &[label])));
    let args = ["--probe-interval-ms", "3600000", "--pool-idle-ms", "1", "--connect-timeout-ms", "2500"];
    let router = args.into_iter().fold(router, RouterBuilder::arg).start().await?;
    let _queued = host.cut_off().await?;
    for turn in 0..2 {
        right(fleet, &router, turn).await?;
    }
    assert_eq!(router.metrics().await?.sum("edge_router_retries_total", &["leg=\"decode\""]), 1.0);
    Ok(router)
}

#[tokio::test]
async fn a_handle_that_has_waited_for_too_long_is_not_sent() -> Result<()> {
    let mut fleet = Fleet::start(1, 1).await?;
    // Of a lease of four seconds two are margin.
    let router = detour(&fleet, "kv_lease_s = \"4\"").await?;
    let (late, _) = late(&router).await?;
    // On a machine that is very busy the other one may be late as well.
    assert!(late >= 1.0);
    assert_eq!(fleet.decode[0].counters().local_prefills as f64, late);
    // It is given back, unless all of its time is over.
    fleet.expect_pinned_some();
    Ok(())
}

#[tokio::test]
async fn one_with_time_left_is_sent_to_another_instance() -> Result<()> {
    let fleet = Fleet::start(1, 1).await?;
    let router = detour(&fleet, "kv_lease_s = \"600\"").await?;
    assert_eq!(late(&router).await?, (0.0, 0.0));
    assert_eq!(fleet.decode[0].counters().remote_loads, 2);
    Ok(())
}
