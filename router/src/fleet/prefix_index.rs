//! Which instances probably hold the KV cache of which prompt prefixes.
//!
//! Fed by the router's own decisions: an instance that was given a prompt has its blocks, until they
//! are pushed out by newer ones. The index is a guess with bounded memory, not a mirror of the engines'
//! caches: it forgets what was used least recently, and an id that left the fleet is never asked for
//! again and goes with the rest.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use edge_router_policy::InstanceId;
use lru::LruCache;
use smallvec::SmallVec;

/// A block that more instances than this hold is hot everywhere; who else has it makes no difference.
const MAX_HOLDERS: usize = 16;

/// A bounded map from block hashes to the instances that hold them.
#[derive(Debug)]
pub struct PrefixIndex {
    blocks: Mutex<LruCache<u64, Holders, BuildTrivial>>,
}

type Holders = SmallVec<[InstanceId; 2]>;

impl PrefixIndex {
    /// An index of at most `capacity` blocks, some 80 bytes each.
    pub fn new(capacity: usize) -> Self {
        let capacity = NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN);
        Self { blocks: Mutex::new(LruCache::with_hasher(capacity, BuildTrivial)) }
    }

    /// For each of `ids`, how many leading blocks of a prompt it holds.
    pub fn matches(&self, prompt: &[u64], ids: &[InstanceId]) -> Vec<usize> {
        let mut matched = vec![0; ids.len()];
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, hash) in prompt.iter().enumerate() {
            let Some(holders) = blocks.peek(hash) else { break };
            let mut any = false;
            for (id, matched) in ids.iter().zip(&mut matched) {
                if *matched == at && holders.contains(id) {
                    *matched = at + 1;
                    any = true;
                }
            }
            if !any {
                break;
            }
        }
        matched
    }

    /// `id` is computing the prompt, and will hold all its blocks.
    pub fn insert(&self, prompt: &[u64], id: InstanceId) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        // From the end, so that the start of a prompt is the last to be forgotten: a block is worth
        // nothing without those before it.
        for hash in prompt.iter().rev() {
            let holders = blocks.get_or_insert_mut(*hash, Holders::new);
            if holders.contains(&id) {
                continue;
            }
            if holders.len() == MAX_HOLDERS {
                holders.remove(0);
            }
            holders.push(id);
        }
    }

    /// `id` has left or lost its cache.
    pub fn forget(&self, id: InstanceId) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut emptied = Vec::new();
        for (hash, holders) in blocks.iter_mut() {
            holders.retain(|holder| *holder != id);
            if holders.is_empty() {
                emptied.push(*hash);
            }
        }
        for hash in emptied {
            blocks.pop(&hash);
        }
    }

    /// All caches are empty.
    pub fn clear(&self) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Blocks remembered.
    pub fn len(&self) -> usize {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The keys are hashes already.
#[derive(Debug, Clone, Copy, Default)]
struct BuildTrivial;

#[derive(Debug, Default)]
struct Trivial(u64);

impl std::hash::BuildHasher for BuildTrivial {
    type Hasher = Trivial;

    fn build_hasher(&self) -> Trivial {
        Trivial::default()
    }
}

impl std::hash::Hasher for Trivial {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_from_the_start_counts() {
        let index = PrefixIndex::new(100);
        index.insert(&[1, 2, 3, 4], 7);
        index.insert(&[1, 2], 8);
        index.insert(&[3, 4], 9);
        assert_eq!(index.matches(&[1, 2, 3, 5], &[7, 8, 9, 10]), [3, 2, 0, 0]);
        assert_eq!(index.matches(&[5], &[7]), [0]);
        assert_eq!(index.matches(&[], &[7]), [0]);
    }

    #[test]
    fn memory_is_bounded_and_starts_are_kept_longest() {
        let index = PrefixIndex::new(10);
        index.insert(&(0..10).collect::<Vec<_>>(), 1);
        index.insert(&[100, 101, 102], 2);
        assert_eq!(index.len(), 10);
        assert_eq!(index.matches(&(0..10).collect::<Vec<_>>(), &[1]), [7]);
    }

    #[test]
    fn one_that_left_is_forgotten() {
        let index = PrefixIndex::new(10);
        index.insert(&[1, 2], 1);
        index.insert(&[1], 2);
        index.forget(1);
        assert_eq!(index.matches(&[1, 2], &[1, 2]), [0, 1]);
        assert_eq!(index.len(), 1);
    }
}
