//! A toy tokeniser: exact in both directions, so that any change of a prompt changes its token ids.
//!
//! Generated text is made of words of two syllables (`" bake"`, one token each); any other text is cut into
//! tokens of two bytes. A few odd pieces (nothing at all, characters of several bytes) keep readers honest.

/// End of sequence, sampled when a request names no limit, or when its `logit_bias` says so.
pub(crate) const EOS: u32 = 1;

const MARKERS: [&str; 6] = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|tools|>"];
const BYTES: u32 = 16;
const PAIRS: u32 = BYTES + 256;
const WORDS: u32 = PAIRS + 65_536;
const ODD: u32 = WORDS + 4096;
const ODD_PIECES: [&str; 4] = ["", " 日本", " naïve", "\n"];

/// How many ids there are; a prompt with an id beyond is refused.
pub(crate) const VOCABULARY: u32 = ODD + ODD_PIECES.len() as u32;

const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aeio";

/// The token ids of `text`.
pub(crate) fn tokenize(text: &str) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len() / 2 + 1);
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        if let Some(marker) = MARKERS.iter().position(|marker| rest.starts_with(marker.as_bytes())) {
            tokens.push(marker as u32);
            rest = rest.get(MARKERS[marker].len()..).unwrap_or_default();
            continue;
        }
        let (piece, after) = rest.split_at(piece_len(rest));
        match word_id(piece) {
            Some(word) => tokens.push(word),
            None => tokens.extend(piece.chunks(2).map(bytes_id)),
        }
        rest = after;
    }
    tokens
}

/// The text of `tokens`; bytes that are no UTF-8 show as U+FFFD.
pub(crate) fn detokenize(tokens: &[u32]) -> String {
    let mut bytes = Vec::new();
    for token in tokens {
        push_piece(*token, &mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The generated token that `draw` stands for: mostly a word, one time in sixteen an odd piece.
pub(crate) fn sampled(draw: u64) -> u32 {
    if (draw >> 40).is_multiple_of(16) {
        ODD + (draw % ODD_PIECES.len() as u64) as u32
    } else {
        WORDS + (draw % 4096) as u32
    }
}

/// A piece ends where the next one starts: before a space, or before a marker's `<`.
fn piece_len(text: &[u8]) -> usize {
    1 + text.iter().skip(1).take_while(|byte| !matches!(byte, b' ' | b'<')).count()
}

fn bytes_id(bytes: &[u8]) -> u32 {
    match *bytes {
        [one] => BYTES + u32::from(one),
        [high, low] => PAIRS + u32::from(high) * 256 + u32::from(low),
        _ => unreachable!("chunks of at most two bytes"),
    }
}

fn word_id(piece: &[u8]) -> Option<u32> {
    let [b' ', c1, v1, c2, v2] = *piece else { return None };
    let syllable = |consonant: u8, vowel: u8| -> Option<u32> {
        let consonant = CONSONANTS.iter().position(|c| *c == consonant)?;
        let vowel = VOWELS.iter().position(|v| *v == vowel)?;
        Some((consonant * VOWELS.len() + vowel) as u32)
    };
    Some(WORDS + syllable(c1, v1)? * 64 + syllable(c2, v2)?)
}

fn push_piece(token: u32, out: &mut Vec<u8>) {
    match token {
        ODD.. => out.extend_from_slice(ODD_PIECES.get((token - ODD) as usize).unwrap_or(&"").as_bytes()),
        WORDS.. => {
            let word = (token - WORDS) as usize;
            out.push(b' ');
            for syllable in [word / 64, word % 64] {
                out.extend([CONSONANTS[syllable / 4], VOWELS[syllable % 4]]);
            }
        }
        PAIRS.. => out.extend([((token - PAIRS) / 256) as u8, ((token - PAIRS) % 256) as u8]),
        BYTES.. => out.push((token - BYTES) as u8),
        EOS => {}
        marker => out.extend_from_slice(MARKERS.get(marker as usize).unwrap_or(&"").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_the_round_trip() {
        for text in
            ["", "hello world", " bake zozo  x", "naïve 日本 \n", "<|im_start|>user\nhi<|im_end|>", "a < b"]
        {
            assert_eq!(detokenize(&tokenize(text)), text);
        }
    }

    #[test]
    fn generated_words_are_one_token_each() {
        for draw in [(1 << 40) + 7, (1 << 40) + 4095, (1 << 40) + 99] {
            let token = sampled(draw);
            assert_eq!(tokenize(&detokenize(&[token])), [token]);
        }
    }

    #[test]
    fn every_id_is_below_the_vocabulary() {
        assert!(tokenize("\u{ffff}zz <s>").iter().all(|id| *id < VOCABULARY));
        assert!((0..64).all(|draw| sampled(draw) < VOCABULARY));
    }
}
