//! Requests that no proper client would send, or not in this way: bytes out, an answer back.

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Answer, Client, PATIENCE};

impl Client {
    /// Writes these bytes on a connection of their own and reads until the other side closes; the request should
    /// therefore ask for that (`connection: close`). The body is what follows the head, chunked or not.
    ///
    /// # Errors
    /// If nobody listens, or what comes back is no answer.
    pub async fn raw(&self, request: &[u8]) -> Result<Answer> {
        let mut tcp = timeout(PATIENCE, TcpStream::connect(&self.address)).await??;
        // An answer may come, and the connection close, before all is written.
        let _ = timeout(PATIENCE, tcp.write_all(request)).await?;
        let mut answer = Vec::new();
        let read = timeout(PATIENCE, tcp.read_to_end(&mut answer)).await.context("it does not close")?;
        if answer.is_empty() {
            read.context("no answer")?;
        }
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let path = line.split(' ').nth(1).unwrap_or_default();
        Ok(parse(&answer)?.watched(self.watch(path)))
    }
}

fn parse(answer: &[u8]) -> Result<Answer> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no head")?;
    let (head, body) = answer.split_at(end + 4);
    let head = std::str::from_utf8(head)?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status")?.parse()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.parse::<HeaderName>().ok()?, value.trim().parse::<HeaderValue>().ok()?))
    };
    let headers: HeaderMap = lines.filter_map(header).collect();
    Ok(Answer { status, headers, body: Bytes::copy_from_slice(body) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_is() {
        let answer = parse(b"HTTP/1.1 404 Not Found\r\nAllow: GET\r\n\r\n{\"a\":1}").unwrap();
        assert_eq!((answer.status, answer.header("allow")), (404, Some("GET")));
        assert_eq!(answer.text(), "{\"a\":1}");
        assert!(parse(b"nothing").is_err());
    }
}
