//! What both legs of an attempt agree on before either has answered. It follows
//! from the request id, the same in every process, so that a reload of the
//! policy between the legs changes nothing.

use crate::InstanceId;

/// What joins the two legs: 32 hexadecimal digits. The prefill instance is part
/// of it, as an attempt may try several of them, and engines ignore a key that
/// they have seen end.
pub(crate) fn key(request_id: &str, prefill: InstanceId) -> String {
    format!("{:032x}", fnv1a(format!("{request_id}@{prefill}").as_bytes()))
}

/// A data-parallel rank below `dp_size`, spread evenly over requests.
pub(crate) fn rank(request_id: &str, dp_size: u32) -> u32 {
    // The lowest bits of such a hash depend on the lowest bits of the text
    // alone, so that it is folded first.
    let hash = fnv1a(request_id.as_bytes());
    let folded = hash ^ (hash >> 64) ^ (hash >> 32);
    u32::try_from(folded % u128::from(dp_size.max(1))).unwrap_or(0)
}

/// FNV-1a of 128 bits.
fn fnv1a(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_its_share() {
        for dp_size in [1, 2, 3, 8] {
            let mut requests = vec![0_u32; dp_size as usize];
            for request in 0..1000 * dp_size {
                requests[rank(&format!("{request:032x}"), dp_size) as usize] += 1;
            }
            assert!(requests.iter().all(|n| (850..1150).contains(n)), "{requests:?}");
        }
    }

    #[test]
    fn a_size_of_nothing_has_the_rank_zero() {
        assert_eq!(rank("r", 0), 0);
    }
}
