//! Rendezvous hashing: every pair of session and instance has a score, and a
//! session is at home where its score is highest. Without the instance it is
//! where the next highest is, and nobody else moves.
//!
//! The functions are spelt out because replicas of different versions must
//! agree on them; std promises that of none.

/// FNV-1a, 64 bits.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The finaliser of SplitMix64 over both, because FNV alone hardly spreads
/// addresses that differ in their last character.
pub(crate) fn score(session: u64, address: u64) -> u64 {
    mix(mix(session).wrapping_add(address))
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}
