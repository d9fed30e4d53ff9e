//! As much of HTTP as it takes to talk to our own programs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// No answer takes longer unless something is wrong.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An answer, read to its end.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
}

/// A connection that is kept for the next request.
pub(super) struct Connection {
    reader: BufReader<TcpStream>,
    address: String,
}

pub(super) fn get(address: &str, path: &str) -> Result<Answer> {
    let mut connection = Connection::open(address)?;
    connection.send(&format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n"), |_| {})
}

impl Connection {
    pub(super) fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(stream), address: address.to_owned() })
    }

    /// Posts JSON and calls `on_line` with each line of a streamed answer as it
    /// comes.
    pub(super) fn post(&mut self, path: &str, json: &str, on_line: impl FnMut(&str)) -> Result<Answer> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.address,
            json.len()
        );
        self.send(&(head + json), on_line)
    }

    fn send(&mut self, request: &str, on_line: impl FnMut(&str)) -> Result<Answer> {
        let reader = &mut self.reader;
        reader.get_mut().write_all(request.as_bytes())?;
        let status_line = line(reader)?;
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("not an HTTP answer: {status_line:?}"))?;
        let (mut chunked, mut length) = (false, None);
        loop {
            let header = line(reader)?.to_ascii_lowercase();
            match header.split_once(':').map(|(name, value)| (name, value.trim())) {
                Some(("transfer-encoding", "chunked")) => chunked = true,
                Some(("content-length", value)) => length = Some(value.parse()?),
                Some(_) => {}
                None => break,
            }
        }
        let body = if chunked { read_chunks(reader, on_line)? } else { read_plain(reader, length)? };
        Ok(Answer { status, body: String::from_utf8(body)? })
    }
}

fn read_plain(reader: &mut impl BufRead, length: Option<u64>) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    reader.take(length.unwrap_or(u64::MAX)).read_to_end(&mut body)?;
    if length.is_some_and(|length| length != body.len() as u64) {
        bail!("the answer was cut short");
    }
    Ok(body)
}

fn read_chunks(reader: &mut impl BufRead, mut on_line: impl FnMut(&str)) -> Result<Vec<u8>> {
    let (mut body, mut shown) = (Vec::new(), 0);
    loop {
        let size = line(reader)?;
        let size = u64::from_str_radix(&size, 16).with_context(|| format!("not a chunk size: {size:?}"))?;
        let before = body.len() as u64;
        reader.take(size).read_to_end(&mut body)?;
        if body.len() as u64 - before != size {
            bail!("the answer was cut short");
        }
        line(reader)?;
        if size == 0 {
            return Ok(body);
        }
        while let Some(end) = body.iter().skip(shown).position(|byte| *byte == b'\n') {
            on_line(&String::from_utf8_lossy(&body[shown..shown + end]));
            shown += end + 1;
        }
    }
}

fn line(reader: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        bail!("the connection was closed");
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// The first field of this name that is a string, found without parsing the
/// rest: enough to show the tokens of the simulated engine.
pub(super) fn string_field(json: &str, name: &str) -> Option<String> {
    let (_, after) = json.split_once(&format!("\"{name}\""))?;
    let mut characters = after.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?.chars();
    let mut value = String::new();
    loop {
        match characters.next()? {
            '"' => return Some(value),
            '\\' => value.push(match characters.next()? {
                'n' => '\n',
                't' => '\t',
                escaped => escaped,
            }),
            character => value.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_in_an_event() {
        let event = r#"data: {"choices": [{"delta": {"content": " a \"b\"\n"}}]}"#;
        assert_eq!(string_field(event, "content").as_deref(), Some(" a \"b\"\n"));
        assert_eq!(string_field(r#"{"content": null}"#, "content"), None);
    }

    #[test]
    fn lines_come_as_chunks_do() {
        let mut lines = Vec::new();
        let chunked = b"5\r\none\nt\r\n4\r\nwo\n\n\r\n0\r\n\r\n";
        let body = read_chunks(&mut &chunked[..], |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(
            (body.as_slice(), lines),
            (&b"one\ntwo\n\n"[..], vec!["one".into(), "two".into(), String::new()])
        );
    }

    #[test]
    fn an_answer_that_is_cut_is_an_error() {
        assert!(read_chunks(&mut &b"5\r\non"[..], |_| {}).is_err());
        assert!(read_plain(&mut &b"ab"[..], Some(3)).is_err());
    }
}
