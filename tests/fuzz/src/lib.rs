//! The parts of the router that parse what strangers send: built with it whole, a fuzzer would wait for
//! wasmtime.

/// Request and response bodies.
#[path = "../../../router/src/body"]
pub mod body {
    pub mod prompt;
    pub mod rename;
    pub mod scan;
    pub mod splice;
    pub mod spoken;
    pub mod sse;
    pub mod turn;
}

#[allow(dead_code, reason = "only what the registration port needs of them is here")]
#[path = "../../../router/src/fleet"]
mod fleet {
    mod spec;

    pub use spec::{InstanceSpec, RENDER, parse_address};
}

#[allow(dead_code, reason = "as above")]
#[path = "../../../router/src/discovery"]
mod discovery {
    mod roster;

    pub use roster::Roster;

    /// The registration port.
    pub mod registration {
        mod message;
        mod registrants;
        mod zmtp;

        use std::time::Duration;

        use tokio::io::{AsyncWriteExt as _, duplex};
        use tokio::time::Instant;

        /// As ZeroMQ's DEALER begins.
        const GREETING: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\x05READY";
        /// An engine that is registered all the time.
        const ENGINE: &[u8] = b"\x84\xa4type\xa1P\xachttp_address\xae10.0.0.1:20005\xabzmq_address\xa1z\xa7dp_size\x02";

        /// Lets an engine register, then whoever sends `bytes`, raw or behind a greeting. The engine must be
        /// there afterwards.
        pub async fn survives(bytes: &[u8], greets: bool) {
            let mut registrants = registrants::Registrants::default();
            let (now, ttl) = (Instant::now(), Duration::from_secs(3600));
            let engine = message::parse(&[ENGINE.to_vec()]).unwrap().unwrap();
            assert!(registrants.heard(engine, now).unwrap());
            let (mut stranger, ours) = duplex(bytes.len() + 4096);
            if greets {
                stranger.write_all(GREETING).await.unwrap();
            }
            stranger.write_all(bytes).await.unwrap();
            stranger.shutdown().await.unwrap();
            if let Ok(mut connection) = zmtp::Connection::greet(ours).await {
                while let Ok(frames) = connection.message().await {
                    assert!(frames.len() <= zmtp::MAX_FRAMES);
                    assert!(frames.iter().map(Vec::len).sum::<usize>() <= zmtp::MAX_MESSAGE);
                    match message::parse(&frames) {
                        Ok(Some(spec)) => drop(registrants.heard(spec, now).map_err(|refusal| refusal.reason())),
                        Ok(None) => {}
                        Err(refusal) => assert!(!refusal.to_string().is_empty() && !refusal.reason().is_empty()),
                    }
                }
            }
            registrants.expire(now, ttl);
            assert!(format!("{:?}", registrants.roster()).contains("10.0.0.1:20005"));
        }
    }
}

pub use discovery::registration;
