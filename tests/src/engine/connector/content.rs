//! KV caches that are found by the prompt, in a store that engines share (engine contract §1, §8): prefill saves, decode
//! loads what matches, and no request says anything of it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::engine::sequence::Sequence;
use crate::lock::lock;

/// A store of KV blocks, to be given to several engines of one block size. Clones are the same store.
#[derive(Clone, Default)]
pub struct SharedStore {
    /// What a full block holds, by the hash of the prompt up to its end.
    blocks: Arc<Mutex<HashMap<u64, Vec<u32>>>>,
}

impl SharedStore {
    /// How many blocks it holds.
    pub fn len(&self) -> usize {
        lock(&self.blocks).len()
    }

    /// Whether nothing was saved yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything, as a store that is short of memory may at any time.
    pub fn clear(&self) {
        lock(&self.blocks).clear();
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").field("blocks", &self.len()).finish()
    }
}

/// Loads the longest prefix that the store has, and computes the rest.
pub(crate) async fn load(store: &SharedStore, sequence: &mut Sequence) {
    let found: Vec<Vec<u32>> = {
        let blocks = lock(&store.blocks);
        sequence.missing_hashes().iter().map_while(|hash| blocks.get(hash).cloned()).collect()
    };
    if found.is_empty() {
        return sequence.compute().await;
    }
    let tokens = sequence.cached_tokens() + found.iter().map(Vec::len).sum::<usize>();
    sequence.take_over(&found);
    sequence.loaded_up_to(tokens).await;
}

/// Saves the prompt's full blocks, whatever they hold.
pub(crate) fn save(store: &SharedStore, sequence: &Sequence) {
    lock(&store.blocks).extend(sequence.full_blocks());
}
