//! MoRIIO's registration: one ZeroMQ frame to the router, the same every three seconds, for as long as the process
//! lives (engine contract §3.1). There is no word at the end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, timeout};
use zeromq::{DealerSocket, Socket as _, SocketSend as _, ZmqMessage};

use super::config::{Config, Role};
use super::process::Machine;

/// How long one frame may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// What this engine says of itself; `None` if it was not told to register, has another connector, or no one role.
pub(crate) fn frame(machine: &Machine) -> Option<Vec<u8>> {
    let config = &machine.config;
    config.register_with.as_ref()?;
    let kind = match config.role {
        Role::Prefill => "P",
        Role::Decode => "D",
        Role::Both | Role::Encode | Role::Render => return None,
    };
    let message = json!({
        "type": kind,
        "http_address": machine.address().to_string(),
        "zmq_address": machine.zmq_address()?,
        "dp_size": config.dp_size,
        "tp_size": 1,
        "transfer_mode": config.connector.moriio_mode()?,
    });
    rmp_serde::to_vec_named(&message).ok()
}

/// Sends the frame now and then, until dropped.
pub(crate) async fn beat(config: Arc<Config>, frame: Vec<u8>) {
    let Some(router) = &config.register_with else { return };
    let endpoint = format!("tcp://{}", router.trim_start_matches("tcp://"));
    let mut ticks = interval(config.ping_interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut socket = None;
    loop {
        ticks.tick().await;
        let sent = async {
            if socket.is_none() {
                let mut dealer = DealerSocket::new();
                dealer.connect(&endpoint).await.ok()?;
                socket = Some(dealer);
            }
            socket.as_mut()?.send(ZmqMessage::from(frame.clone())).await.ok()
        };
        if timeout(SEND_TIMEOUT, sent).await.ok().flatten().is_none() {
            socket = None;
        }
    }
}
