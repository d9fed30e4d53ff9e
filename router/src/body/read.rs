//! Reads a body whole, under a cap.

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt as _;
use thiserror::Error;

/// Why a body could not be read.
#[derive(Debug, Error)]
pub enum ReadError<E> {
    /// It is longer than the cap, declared or found so.
    #[error("body is larger than {limit} bytes")]
    TooLarge {
        /// The cap in bytes.
        limit: usize,
    },
    /// The connection failed on the way.
    #[error("body ended early")]
    Transport(#[source] E),
}

/// Reads `body` up to `limit` bytes. A body that arrives in one frame is not copied.
///
/// # Errors
/// [`ReadError::TooLarge`] before anything is read when the declared length is over the limit.
pub async fn read_capped<B>(body: B, limit: usize) -> Result<Bytes, ReadError<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    let declared = body.size_hint().lower();
    if declared > limit as u64 {
        return Err(ReadError::TooLarge { limit });
    }
    let mut body = body;
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ReadError::Transport)?.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(ReadError::TooLarge { limit });
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            // The declared length is trusted for at most a mebibyte at once: it is the client's word.
            rest.reserve(usize::try_from(declared).unwrap_or(0).min(1 << 20).max(first.len() + data.len()));
            rest.extend_from_slice(&std::mem::take(&mut first));
        }
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn chunked(chunks: &[&'static str]) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let frames: Vec<_> =
            chunks.iter().map(|c| Ok(Frame::data(Bytes::from_static(c.as_bytes())))).collect();
        StreamBody::new(stream::iter(frames))
    }

    #[tokio::test]
    async fn frames_are_joined() {
        assert_eq!(read_capped(chunked(&["ab", "", "cd", "e"]), 5).await.unwrap(), "abcde");
        assert_eq!(read_capped(chunked(&[]), 5).await.unwrap(), "");
    }

    #[tokio::test]
    async fn the_cap_holds_for_both_framings() {
        assert!(matches!(
            read_capped(chunked(&["abc", "def"]), 5).await,
            Err(ReadError::TooLarge { limit: 5 })
        ));
        assert!(matches!(read_capped(Full::from("abcdef"), 5).await, Err(ReadError::TooLarge { limit: 5 })));
    }
}
