//! Random numbers for choices, not for secrets.

use std::hash::{BuildHasher, RandomState};

/// A small fast generator (xorshift64*), for breaking ties and drawing samples.
///
/// ```
/// use edge_router_policy::Random;
///
/// let mut random = Random::seeded(7);
/// assert!(random.below(3).is_some_and(|index| index < 3));
/// assert_eq!(random.below(0), None);
/// ```
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded by the system: different in every process and every call.
    pub fn new() -> Self {
        Self::seeded(RandomState::new().hash_one(0))
    }

    /// Gives the same numbers for the same seed.
    pub fn seeded(seed: u64) -> Self {
        // Neighbouring seeds must not begin alike, and 0 would stay 0.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Any number.
    pub fn next_u32(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        // The upper half; it is the better one.
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    /// A number below `bound`, each as likely as the other; `None` if there is
    /// none.
    pub fn below(&mut self, bound: usize) -> Option<usize> {
        // The remainder's bias is below one in a million for any fleet.
        (self.next_u32() as usize).checked_rem(bound)
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_below_the_bound_comes_up_about_as_often() {
        let mut random = Random::seeded(1);
        let mut counts = [0_u32; 5];
        (0..10_000).for_each(|_| counts[random.below(5).unwrap()] += 1);
        assert!(counts.iter().all(|count| (1_800..2_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn neighbouring_seeds_differ_from_the_first_number_on() {
        assert_ne!(Random::seeded(1).next_u32(), Random::seeded(2).next_u32());
        assert_ne!(Random::seeded(0).next_u32(), 0);
    }
}
