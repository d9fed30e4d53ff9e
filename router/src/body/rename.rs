//! Puts one id in the place of another in an answer.
//!
//! Some connectors need a request id that names the engines' inner addresses, and engines answer with it
//! as the id of what they say (engine contract §3.3). Clients see the router's own id instead.

use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;

/// What to replace by what.
#[derive(Debug, Clone)]
pub struct Rename {
    from: Finder<'static>,
    to: Box<[u8]>,
}

impl Rename {
    /// Replaces `from`, which must not be empty, by `to`.
    pub fn new(from: &[u8], to: &str) -> Self {
        Self { from: Finder::new(from).into_owned(), to: to.as_bytes().into() }
    }

    /// The text with all replaced; the same bytes where there is nothing to replace.
    pub fn apply(&self, text: Bytes) -> Bytes {
        let mut found = self.from.find_iter(&text).peekable();
        if self.from.needle().is_empty() || found.peek().is_none() {
            return text;
        }
        let (mut out, mut copied) = (BytesMut::with_capacity(text.len()), 0);
        for at in found {
            out.extend_from_slice(&text[copied..at]);
            out.extend_from_slice(&self.to);
            copied = at + self.from.needle().len();
        }
        out.extend_from_slice(&text[copied..]);
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_renamed_and_nothing_else() {
        let rename = Rename::new(b"___prefill_addr_10.0.0.1", "r1");
        let text = Bytes::from_static(
            b"{\"id\":\"cmpl-___prefill_addr_10.0.0.1\",\"x\":\"___prefill_addr_10.0.0.1\"}",
        );
        assert_eq!(rename.apply(text), "{\"id\":\"cmpl-r1\",\"x\":\"r1\"}");
        let plain = Bytes::from_static(b"{\"id\":\"cmpl-1\"}");
        assert_eq!(rename.apply(plain.clone()).as_ptr(), plain.as_ptr());
        assert_eq!(Rename::new(b"", "r1").apply(plain.clone()), plain);
    }
}
