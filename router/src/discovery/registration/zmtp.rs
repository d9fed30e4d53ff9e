//! As much of ZeroMQ's wire protocol (ZMTP 3, mechanism NULL) as a ROUTER needs that only listens.
//!
//! The crate `zeromq` is not used for it: it reserves as much memory as a frame's header asks for, so that
//! nine bytes from anybody who can reach the port end the process (zeromq 0.7.0). Here a message has a
//! limit, and tests speak to it with that crate's DEALER.

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};

/// Bytes of a message. A registration has about two hundred.
pub(super) const MAX_MESSAGE: usize = 8192;
/// Frames of a message. A registration has one.
pub(super) const MAX_FRAMES: usize = 8;

const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why a connection is given up.
#[derive(Debug, Error)]
pub(super) enum ZmtpError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("not ZeroMQ 3 or later")]
    Greeting,
    #[error("a security mechanism other than NULL")]
    Mechanism,
    #[error("a frame out of place")]
    Frame,
    #[error("a message above {MAX_MESSAGE} bytes or {MAX_FRAMES} frames")]
    TooLarge,
    #[error("the greeting takes too long")]
    Late,
}

/// A connection on which both sides have greeted.
#[derive(Debug)]
pub(super) struct Connection<S> {
    stream: BufReader<S>,
}

struct Frame {
    flags: u8,
    body: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Greets, as a ROUTER without identity.
    pub(super) async fn greet(stream: S) -> Result<Self, ZmtpError> {
        let mut connection = Self { stream: BufReader::with_capacity(1024, stream) };
        connection.write(&greeting()).await?;
        let mut theirs = [0; GREETING];
        // Whoever speaks something else may be waiting for an answer after a few bytes.
        connection.stream.read_exact(&mut theirs[..1]).await?;
        if theirs[0] != 0xff {
            return Err(ZmtpError::Greeting);
        }
        connection.stream.read_exact(&mut theirs[1..]).await?;
        if theirs[9] & 1 == 0 || theirs[10] < 3 {
            return Err(ZmtpError::Greeting);
        }
        if &theirs[12..32] != b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" {
            return Err(ZmtpError::Mechanism);
        }
        connection.command(b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER").await?;
        let ready = connection.frame(MAX_MESSAGE).await?;
        if ready.flags & COMMAND == 0 || !ready.body.starts_with(b"\x05READY") {
            return Err(ZmtpError::Frame);
        }
        Ok(connection)
    }

    /// The frames of the next message.
    pub(super) async fn message(&mut self) -> Result<Vec<Vec<u8>>, ZmtpError> {
        let (mut frames, mut room) = (Vec::new(), MAX_MESSAGE);
        loop {
            let frame = self.frame(room).await?;
            if frame.flags & COMMAND != 0 {
                self.obey(&frame.body).await?;
                continue;
            }
            room -= frame.body.len();
            frames.push(frame.body);
            if frame.flags & MORE == 0 {
                return Ok(frames);
            }
            if frames.len() == MAX_FRAMES {
                return Err(ZmtpError::TooLarge);
            }
        }
    }

    /// A peer that asks whether this side is there gets its own words back; all else is not for a listener.
    async fn obey(&mut self, command: &[u8]) -> Result<(), ZmtpError> {
        let Some(ping) = command.strip_prefix(b"\x04PING") else { return Ok(()) };
        match ping {
            // How long the peer waits, then its words.
            [_, _, context @ ..] if context.len() <= 16 => {
                self.command(&[b"\x04PONG", context].concat()).await
            }
            _ => Err(ZmtpError::Frame),
        }
    }

    async fn frame(&mut self, room: usize) -> Result<Frame, ZmtpError> {
        let flags = self.stream.read_u8().await?;
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(ZmtpError::Frame);
        }
        let length = match flags & LONG {
            0 => u64::from(self.stream.read_u8().await?),
            _ => self.stream.read_u64().await?,
        };
        let length =
            usize::try_from(length).ok().filter(|length| *length <= room).ok_or(ZmtpError::TooLarge)?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok(Frame { flags, body })
    }

    /// `body` is shorter than 256 bytes.
    async fn command(&mut self, body: &[u8]) -> Result<(), ZmtpError> {
        let length = u8::try_from(body.len()).map_err(|_| ZmtpError::Frame)?;
        self.write(&[&[COMMAND, length], body].concat()).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), ZmtpError> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }
}

/// Signature, version 3.0, mechanism, no server; the rest is zero.
fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}
