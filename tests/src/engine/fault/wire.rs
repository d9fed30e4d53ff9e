//! Faults on the way of the response: lost, cut, stalled, slow, bloated, or in pieces that respect no event's borders.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::time::sleep;

use super::{Fault, Kind};
use crate::engine::body::{Frames, Sender, SimBody, channel};
use crate::engine::digest::mix;

/// How long a response's headers get to leave before the connection closes under them.
const HEADERS_LEAVE: Duration = Duration::from_millis(20);

/// What happens to the frames of a body; one frame is one token's event, or a whole body that is not streamed.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wire {
    CutAfter { frames: usize },
    StallAfter { frames: usize },
    SlowFrames { ms: u64 },
    OneByteWrites {},
    Reframe { seed: u64 },
    KeepAliveComments {},
    PaddedFrames { bytes: usize },
    LoseAnswer {},
}

/// Whether the answer is to be lost; if so the engine has served the request when this returns.
pub(crate) async fn loses(faults: &[Wire], body: &mut SimBody) -> bool {
    let lost = faults.iter().any(|fault| matches!(fault, Wire::LoseAnswer {}));
    while lost && body.frame().await.is_some() {}
    lost
}

/// Lets `fault` happen to a body.
pub(crate) fn shape(body: SimBody, fault: Wire) -> SimBody {
    channel(move |out| async move {
        let mut frames = Frames::new(body);
        match fault {
            Wire::CutAfter { frames: count } => {
                pass(&mut frames, &out, count).await;
                sleep(HEADERS_LEAVE).await;
                out.cut().await;
            }
            Wire::StallAfter { frames: count } => {
                pass(&mut frames, &out, count).await;
                std::future::pending::<()>().await;
            }
            Wire::SlowFrames { ms } => {
                while let Some(frame) = frames.next().await {
                    sleep(Duration::from_millis(ms)).await;
                    out.send(frame).await;
                }
            }
            Wire::OneByteWrites {} => {
                while let Some(mut frame) = frames.next().await {
                    while !frame.is_empty() {
                        out.send(frame.split_to(1)).await;
                    }
                }
            }
            Wire::KeepAliveComments {} => {
                while let Some(frame) = frames.next().await {
                    out.send(Bytes::from_static(b": keep-alive\n\n")).await;
                    out.send(frame).await;
                }
            }
            Wire::PaddedFrames { bytes } => {
                let padding = Bytes::from(format!(": {}\n\n", "x".repeat(bytes)));
                while let Some(frame) = frames.next().await {
                    out.send(padding.clone()).await;
                    out.send(frame).await;
                }
            }
            Wire::Reframe { seed } => reframe(&mut frames, &out, seed).await,
            Wire::LoseAnswer {} => out.cut().await,
        }
    })
}

async fn pass(frames: &mut Frames, out: &Sender, count: usize) {
    for _ in 0..count {
        match frames.next().await {
            Some(frame) => out.send(frame).await,
            None => break,
        }
    }
}

/// Cuts the bytes anew, into pieces from one byte up to a few events, the same ones for the same seed.
async fn reframe(frames: &mut Frames, out: &Sender, mut seed: u64) {
    let mut held = BytesMut::new();
    let mut ended = false;
    while !ended || !held.is_empty() {
        seed = mix(seed, 1);
        let size = 1 + (seed % 700) as usize;
        while held.len() < size && !ended {
            match frames.next().await {
                Some(frame) => held.extend_from_slice(&frame),
                None => ended = true,
            }
        }
        let piece: Bytes = held.split_to(size.min(held.len())).freeze();
        if !piece.is_empty() {
            out.send(piece).await;
        }
    }
}

impl Fault {
    /// The connection closes right after the response's headers.
    pub fn close_after_headers() -> Self {
        Self::cut_after(0)
    }

    /// The request is served to its end, and the connection then closed without a byte of the answer.
    pub fn lose_answer() -> Self {
        Self::new(Kind::Wire(Wire::LoseAnswer {}))
    }

    /// The connection closes after so many frames of the body.
    pub fn cut_after(frames: usize) -> Self {
        Self::new(Kind::Wire(Wire::CutAfter { frames }))
    }

    /// Nothing more comes after so many frames of the body, until the client goes away.
    pub fn stall_after(frames: usize) -> Self {
        Self::new(Kind::Wire(Wire::StallAfter { frames }))
    }

    /// Each frame of the body leaves `delay` late.
    pub fn slow_frames(delay: Duration) -> Self {
        Self::new(Kind::Wire(Wire::SlowFrames { ms: delay.as_millis() as u64 }))
    }

    /// Each byte of the body is a write of its own.
    pub fn one_byte_writes() -> Self {
        Self::new(Kind::Wire(Wire::OneByteWrites {}))
    }

    /// A comment comes before each event of a stream, as keep-alive settings of some servers make them.
    pub fn keep_alive_comments() -> Self {
        Self::new(Kind::Wire(Wire::KeepAliveComments {}))
    }

    /// A comment of so many bytes comes before each event of a stream.
    pub fn padded_frames(bytes: usize) -> Self {
        Self::new(Kind::Wire(Wire::PaddedFrames { bytes }))
    }

    /// The body's bytes are split and merged without regard to events, the same way for the same `seed`.
    pub fn reframe(seed: u64) -> Self {
        Self::new(Kind::Wire(Wire::Reframe { seed }))
    }
}
