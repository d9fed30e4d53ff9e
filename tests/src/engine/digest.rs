//! The one mixing function behind block hashes, sampled tokens and made-up ids: stable over runs and machines.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Folds `value` into `state` (the finaliser of splitmix64).
pub(crate) fn mix(state: u64, value: u64) -> u64 {
    let mut z = state.rotate_left(5) ^ value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Folds every byte of `text` into `state`.
pub(crate) fn mix_text(state: u64, text: &str) -> u64 {
    text.bytes().fold(mix(state, text.len() as u64), |state, byte| mix(state, u64::from(byte)))
}

/// Folds token ids into `state`.
pub(crate) fn mix_tokens(state: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(state, |state, token| mix(state, u64::from(*token)))
}

/// The chained hashes of the full blocks of `tokens`: equal hashes mean equal tokens from the very start.
pub(crate) fn block_hashes(tokens: &[u32], block_size: usize, salt: u64) -> Vec<u64> {
    tokens
        .chunks_exact(block_size)
        .scan(salt, |parent, block| {
            *parent = mix_tokens(mix(*parent, 1), block);
            Some(*parent)
        })
        .collect()
}

/// A random number that differs in every process and on every call.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// A random id in the form of a version-4 UUID, as each start of an engine draws one.
pub(crate) fn random_uuid() -> String {
    let (high, low) = (random(), random());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        (low >> 48) & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_hashes_chain() {
        let first = block_hashes(&[1, 2, 3, 4, 5], 2, 0);
        let second = block_hashes(&[9, 2, 3, 4, 5], 2, 0);
        assert_eq!(first.len(), 2, "the partial block has no hash");
        assert_ne!(first[1], second[1], "a block's hash depends on what came before it");
        assert_ne!(first, block_hashes(&[1, 2, 3, 4, 5], 2, 7), "a cache salt separates tenants");
    }

    #[test]
    fn uuids_look_like_version_4() {
        let id = random_uuid();
        assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert_ne!(id, random_uuid());
    }
}
