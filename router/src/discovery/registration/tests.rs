//! Engines that come, beat and go; and what is no engine.

use edge_router_policy::Role;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use zeromq::{DealerSocket, Socket as _, SocketSend as _, ZmqMessage};

use super::message::tests::{MORIIO, P2P_NCCL, bytes};
use super::*;
use crate::discovery::Discovery;
use crate::fleet::{Fleet, FleetSettings, InstanceSpec};
use crate::metrics::Metrics;

const TTL: Duration = Duration::from_secs(12);
/// Only a hang takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

struct Setup {
    fleet: Arc<Fleet>,
    metrics: Metrics,
    source: Source,
}

impl Setup {
    fn new() -> Self {
        let fleet = Fleet::new(FleetSettings::default());
        let source = Discovery::new(Arc::clone(&fleet)).source("registration");
        Self { metrics: Metrics::new(&fleet), fleet, source }
    }

    /// Listens on a port of its own.
    async fn listening(self) -> (Arc<Fleet>, Metrics, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(listen(listener, TTL, Arc::clone(&self.metrics.discovery), self.source));
        (self.fleet, self.metrics, at)
    }

    /// Registers what is sent, without sockets.
    fn registering(self) -> (Arc<Fleet>, Metrics, mpsc::Sender<Word>) {
        let (words, heard) = mpsc::channel(WAITING);
        tokio::spawn(register(heard, TTL, Refusals::new(Arc::clone(&self.metrics.discovery)), self.source));
        (self.fleet, self.metrics, words)
    }
}

fn specs(fleet: &Fleet) -> Vec<InstanceSpec> {
    fleet.snapshot().instances.iter().map(|i| i.spec().clone()).collect()
}

fn addresses(fleet: &Fleet) -> Vec<String> {
    specs(fleet).into_iter().map(|spec| spec.address).collect()
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect(what);
}

fn word(hex: &str) -> Word {
    (([127, 0, 0, 1], 9).into(), Ok(vec![bytes(hex)]))
}

#[tokio::test]
async fn engines_register_over_real_dealers() {
    let (fleet, metrics, at) = Setup::new().listening().await;
    let mut dealers = Vec::new();
    for hex in [MORIIO, P2P_NCCL] {
        let mut dealer = DealerSocket::new();
        dealer.connect(&format!("tcp://{at}")).await.unwrap();
        dealer.send(ZmqMessage::from(bytes(hex))).await.unwrap();
        dealers.push(dealer);
    }
    eventually("both are there", || addresses(&fleet).len() == 2).await;
    let moriio = specs(&fleet).into_iter().find(|spec| spec.address == "10.0.0.1:20005").unwrap();
    assert_eq!((moriio.role, moriio.dp_size, moriio.tp_size), (Role::Prefill, 8, 1));

    // As a REQ socket frames it, and garbage: refused, and the connection goes on.
    let mut two = ZmqMessage::from(bytes(MORIIO));
    two.push_front(Vec::new().into());
    dealers[0].send(two).await.unwrap();
    dealers[0].send(ZmqMessage::from(vec![0xc1; 300])).await.unwrap();
    dealers[0]
        .send(ZmqMessage::from(rmp_serde::to_vec_named(&serde_json::json!({ "type": "HELLO" })).unwrap()))
        .await
        .unwrap();
    let decode = serde_json::json!({ "type": "D", "http_address": "10.0.0.3:1", "zmq_address": "z" });
    dealers[0].send(ZmqMessage::from(rmp_serde::to_vec_named(&decode).unwrap())).await.unwrap();
    eventually("the third is there", || addresses(&fleet).len() == 3).await;
    let text = metrics.render();
    for reason in ["frames", "payload"] {
        let line = format!("edge_router_registrations_refused_total{{reason=\"{reason}\"}} 1");
        assert!(text.contains(&line), "{text}");
    }
}

#[tokio::test]
async fn what_breaks_the_protocol_ends_its_connection_and_nothing_else() {
    let (fleet, metrics, at) = Setup::new().listening().await;
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    let mut plain = greeting;
    plain[12..17].copy_from_slice(b"PLAIN");
    let ready = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER";
    let greeted = [&greeting[..], &ready[..]].concat();
    let after = |bytes: &[u8]| [&greeted[..], bytes].concat();
    let broken = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        plain.to_vec(),
        [&greeting[..], b"\0\x01x"].concat(),
        // Frames of 2^50 and 2^64-1 bytes, and of one byte too many.
        after(&[&[2][..], &(1_u64 << 50).to_be_bytes()].concat()),
        after(&[&[2][..], &u64::MAX.to_be_bytes()].concat()),
        after(&[&[2][..], &(zmtp::MAX_MESSAGE as u64 + 1).to_be_bytes()].concat()),
        after(&[1, 0].repeat(zmtp::MAX_FRAMES)),
        after(&[0xf8, 0]),
        after(b"\x04\x05\x04PING"),
    ];
    for bytes in &broken {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // Reset or closed, but ended from the other side.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is ended");
    }
    let counted = format!("refused_total{{reason=\"protocol\"}} {}", broken.len());
    eventually("all are counted", || metrics.render().contains(&counted)).await;

    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(&after(b"\x04\x09\x04PING\0\x0aab")).await.unwrap();
    let moriio = bytes(MORIIO);
    stream.write_all(&[&[0, u8::try_from(moriio.len()).unwrap()][..], &moriio].concat()).await.unwrap();
    eventually("an engine that keeps to it registers", || addresses(&fleet).len() == 1).await;
    let mut answer = vec![0; 64 + 30 + 9];
    stream.read_exact(&mut answer).await.unwrap();
    assert!(answer.ends_with(b"\x04\x07\x04PONGab"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn who_is_not_heard_of_has_left() {
    let (fleet, _metrics, words) = Setup::new().registering();
    for second in 0..30 {
        if second % 3 == 0 {
            words.send(word(MORIIO)).await.unwrap();
        }
        if second < 10 && second % 3 == 0 {
            words.send(word(P2P_NCCL)).await.unwrap();
        }
        sleep(Duration::from_secs(1)).await;
        // The last beat of the other was in second 9.
        let expected = if second < 20 { 2 } else { addresses(&fleet).len() };
        assert_eq!(addresses(&fleet).len(), expected, "in second {second}");
    }
    assert_eq!(addresses(&fleet), ["10.0.0.1:20005"]);
    sleep(TTL).await;
    assert!(addresses(&fleet).is_empty());
    words.send(word(P2P_NCCL)).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(addresses(&fleet), ["10.0.1.2:20001"]);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_changes_nothing_and_a_new_description_makes_a_new_instance() {
    let (fleet, _metrics, words) = Setup::new().registering();
    let mut ids = Vec::new();
    for dp_size in ["08", "08", "10"] {
        let hex = MORIIO.replace("64705f73697a6508", &format!("64705f73697a65{dp_size}"));
        words.send(word(&hex)).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        ids.push(fleet.snapshot().instances[0].id());
    }
    assert_eq!(ids, [0, 0, 1]);
    assert_eq!(specs(&fleet)[0].dp_size, 16);
}

#[test]
fn random_bytes_on_the_wire_are_survived() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut greeting = vec![0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting.extend(b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER");
    let strategy = (0..=greeting.len(), proptest::collection::vec(any::<u8>(), 0..600));
    let survives = |(kept, random): (usize, Vec<u8>)| {
        runtime.block_on(async {
            let (mut peer, stream) = tokio::io::duplex(1 << 16);
            peer.write_all(&[&greeting[..kept], &random].concat()).await.unwrap();
            peer.shutdown().await.unwrap();
            if let Ok(mut connection) = Connection::greet(stream).await {
                while let Ok(message) = connection.message().await {
                    let _ = message::parse(&message);
                }
            }
        });
        Ok(())
    };
    TestRunner::new(Config::default()).run(&strategy, survives).unwrap();
}
