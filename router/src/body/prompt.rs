//! The prompt as blocks: chained hashes of its leading text, and an estimate of its tokens.
//!
//! The router has no tokeniser. It takes four bytes of JSON text for a token, which is good enough to
//! compare prompts and loads; a prompt of token ids is counted exactly. Inline media (`data:` URLs)
//! are hashed by their length and samples, so that an image costs what a sentence does.

use memchr::{memchr, memmem};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::scan::Object;

/// Bytes of prompt text that stand for one token.
pub const BYTES_PER_TOKEN: usize = 4;

/// What an inline image, audio clip or video counts for, in tokens: the size of a common image.
const MEDIA_TOKENS: usize = 512;

/// Hashing stops after this many blocks; behind it a prompt counts as uncached.
const MAX_BLOCKS: usize = 8192;

/// Fields that come before the conversation in the rendered prompt, or salt its cache.
const SEED_FIELDS: [&str; 5] = ["model", "cache_salt", "tools", "chat_template", "documents"];

/// Estimated prompt tokens of a request.
pub fn tokens(object: &Object) -> u32 {
    let bytes: usize = match content(object) {
        Some(Content::TokenIds(text)) => ids(text).count() * BYTES_PER_TOKEN,
        Some(Content::Text(text)) => pieces(text).map(|p| p.weight()).sum(),
        None => 0,
    };
    u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX)
}

/// Chained hashes of the prompt's whole blocks of `block_tokens` tokens each, from its start.
pub fn blocks(object: &Object, block_tokens: usize) -> Vec<u64> {
    let seed = SEED_FIELDS.iter().fold(0, |seed, name| {
        object.get(name).map_or(seed, |value| xxh3_64_with_seed(value.as_bytes(), seed ^ name.len() as u64))
    });
    let seed = media_hashes(object).map_or(seed, |hashes| xxh3_64_with_seed(hashes.as_bytes(), seed));
    let mut chain = Chain::new(seed, block_tokens * BYTES_PER_TOKEN);
    match content(object) {
        Some(Content::TokenIds(text)) => {
            ids(text).take_while(|id| chain.push(&id.to_le_bytes())).for_each(drop);
        }
        Some(Content::Text(text)) => {
            pieces(text).take_while(|piece| chain.push_piece(piece)).for_each(drop);
        }
        None => {}
    }
    chain.hashes
}

/// What tells the media of a prompt of token ids apart: all images look alike in the ids.
fn media_hashes(object: &Object) -> Option<String> {
    let features = object.get("features").filter(|features| features.starts_with('{'))?;
    let features = Object::scan(object.bytes().slice_ref(features.as_bytes())).ok()?;
    features.get("mm_hashes").map(str::to_owned)
}

enum Content<'a> {
    Text(&'a str),
    TokenIds(&'a str),
}

/// The field that holds the prompt, whatever the endpoint.
fn content(object: &Object) -> Option<Content<'_>> {
    let text = ["messages", "prompt", "token_ids", "input"].iter().find_map(|name| object.get(name))?;
    let is_ids =
        text.strip_prefix('[').is_some_and(|t| t.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    Some(if is_ids { Content::TokenIds(text) } else { Content::Text(text) })
}

fn ids(text: &str) -> impl Iterator<Item = u32> {
    text.split([',', '[', ']']).filter_map(|id| id.trim().parse().ok())
}

enum Piece<'a> {
    Text(&'a [u8]),
    Media(&'a [u8]),
}

impl Piece<'_> {
    /// Bytes of text that weigh as much.
    fn weight(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Media(_) => MEDIA_TOKENS * BYTES_PER_TOKEN,
        }
    }
}

/// Cuts JSON text into what is hashed whole and the inline media that are sampled.
fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = text.as_bytes();
    let mut media = None;
    std::iter::from_fn(move || {
        if let Some(found) = media.take() {
            return Some(Piece::Media(found));
        }
        if rest.is_empty() {
            return None;
        }
        let Some(start) = memmem::find(rest, b"\"data:").map(|quote| quote + 1) else {
            return Some(Piece::Text(std::mem::take(&mut rest)));
        };
        let (before, url) = rest.split_at(start);
        // No escape matters here: neither a media type nor base64 contains a quote.
        let (url, after) = url.split_at(memchr(b'"', url).unwrap_or(url.len()));
        rest = after;
        media = Some(url);
        Some(Piece::Text(before))
    })
}

/// Length and samples of a media URL. Two files of one length that agree at all samples are taken for
/// one: the cost of a mistake is a cache miss.
fn sample(url: &[u8]) -> [u8; 8] {
    const SAMPLES: usize = 32;
    const WIDTH: usize = 32;
    let step = (url.len() / SAMPLES).max(WIDTH);
    let hash = (0..url.len())
        .step_by(step)
        .fold(url.len() as u64, |hash, at| xxh3_64_with_seed(&url[at..url.len().min(at + WIDTH)], hash));
    hash.to_le_bytes()
}

/// Hashes whole blocks, each seeded with the hash of what precedes it.
struct Chain {
    block: usize,
    previous: u64,
    partial: Vec<u8>,
    hashes: Vec<u64>,
}

impl Chain {
    fn new(seed: u64, block: usize) -> Self {
        let block = block.max(1);
        Self { block, previous: seed, partial: Vec::with_capacity(block), hashes: Vec::new() }
    }

    fn push_piece(&mut self, piece: &Piece<'_>) -> bool {
        match piece {
            Piece::Text(text) => self.push(text),
            Piece::Media(url) => {
                let digest = sample(url);
                let repeats = piece.weight() / digest.len();
                (0..repeats).all(|_| self.push(&digest))
            }
        }
    }

    /// Takes more text; false once the limit of blocks is reached.
    fn push(&mut self, mut text: &[u8]) -> bool {
        while !text.is_empty() && self.hashes.len() < MAX_BLOCKS {
            let take = text.len().min(self.block - self.partial.len());
            let (head, tail) = text.split_at(take);
            text = tail;
            if take == self.block {
                self.close(head);
                continue;
            }
            self.partial.extend_from_slice(head);
            if self.partial.len() == self.block {
                let mut block = std::mem::take(&mut self.partial);
                self.close(&block);
                block.clear();
                self.partial = block;
            }
        }
        self.hashes.len() < MAX_BLOCKS
    }

    fn close(&mut self, block: &[u8]) {
        self.previous = xxh3_64_with_seed(block, self.previous);
        self.hashes.push(self.previous);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn object(text: &str) -> Object {
        Object::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn shared(a: &str, b: &str) -> usize {
        let (a, b) = (blocks(&object(a), 4), blocks(&object(b), 4));
        a.iter().zip(&b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_conversation_that_goes_on_shares_its_past() {
        let turn1 = r#"{"messages":[{"role":"user","content":"tell me about the sea, please"}]}"#;
        let turn2 = r#"{"messages":[{"role":"user","content":"tell me about the sea, please"},{"role":"assistant","content":"it is wet"}]}"#;
        let first = blocks(&object(turn1), 4).len();
        // All but the block that holds the closing bracket.
        assert!(shared(turn1, turn2) >= first - 1);
        assert!(first >= 3);
    }

    #[test]
    fn images_of_token_ids_are_told_apart_by_their_hashes() {
        let with = |hash: &str, payload: &str| {
            let features = format!(r#"{{"kwargs_data":["{payload}"],"mm_hashes":{{"image":["{hash}"]}}}}"#);
            format!(r#"{{"token_ids":[1,2,3,4,5,6,7,8],"features":{features}}}"#)
        };
        assert_eq!(shared(&with("a", "x"), &with("a", "y")), 2);
        assert_eq!(shared(&with("a", "x"), &with("b", "x")), 0);
    }

    #[test]
    fn model_and_salt_separate() {
        let of = |salt: &str| format!(r#"{{"prompt":"{}","cache_salt":"{salt}"}}"#, "x".repeat(100));
        assert_eq!(shared(&of("a"), &of("b")), 0);
        assert_eq!(shared(&of("a"), &of("a")), 6);
    }

    #[test]
    fn token_ids_are_counted_exactly() {
        let a = object(r#"{"prompt":[1, 2,3,4,5,6,7,8,9]}"#);
        assert_eq!(tokens(&a), 9);
        assert_eq!(blocks(&a, 4).len(), 2);
        assert_eq!(shared(r#"{"prompt":[1,2,3,4,5,6,7,8]}"#, r#"{"prompt":[1,2,3,4,5,6,7,9]}"#), 1);
    }

    #[test]
    fn media_weigh_the_same_whatever_their_size() {
        let with = |data: &str| {
            object(&format!(
                r#"{{"messages":[{{"content":[{{"image_url":{{"url":"data:image/png;base64,{data}"}}}}]}}]}}"#
            ))
        };
        let (small, large) = (with(&"A".repeat(100)), with(&"A".repeat(1_000_000)));
        assert_eq!(tokens(&small), tokens(&large));
        assert_eq!(blocks(&small, 4).len(), blocks(&large, 4).len());
        assert_ne!(blocks(&small, 4).last(), blocks(&large, 4).last());
        assert_eq!(blocks(&large, 4), blocks(&with(&"A".repeat(1_000_000)), 4));
    }

    #[test]
    fn hashing_is_bounded() {
        let text = format!(r#"{{"prompt":"{}"}}"#, "ab ".repeat(1_000_000));
        assert_eq!(blocks(&object(&text), 32).len(), MAX_BLOCKS);
    }
}
