//! The KV cache: physical blocks, what each one holds, who may take it next.
//!
//! A block's KV content is stood for by the token ids that were computed into it. Nothing is wiped when a block is
//! freed, only when it is handed out again: whoever reads too late reads what is there, as on real hardware.

use std::collections::{HashMap, VecDeque};

/// A physical block's number; 0 is never handed out, as in vLLM.
pub(crate) type BlockId = u32;

#[derive(Default)]
struct Block {
    tokens: Vec<u32>,
    hash: Option<u64>,
    users: u32,
}

/// All blocks of one DP rank.
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    /// Taken from the back. Blocks worth nothing to the prefix cache are put there, the others at the front, so
    /// that cached prefixes go last and oldest first.
    free: VecDeque<BlockId>,
    cached: HashMap<u64, BlockId>,
}

impl BlockPool {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            blocks: (0..=count).map(|_| Block::default()).collect(),
            free: (1..=count as BlockId).rev().collect(),
            cached: HashMap::new(),
        }
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// The blocks that hold the longest cached prefix of a prompt with these block hashes.
    pub(crate) fn longest_prefix(&self, hashes: &[u64]) -> Vec<BlockId> {
        hashes.iter().map_while(|hash| self.cached.get(hash).copied()).collect()
    }

    /// Adds a user to blocks found in the prefix cache.
    pub(crate) fn share(&mut self, ids: &[BlockId]) {
        for id in ids {
            self.blocks[*id as usize].users += 1;
        }
        let Self { blocks, free, .. } = self;
        free.retain(|id| blocks[*id as usize].users == 0);
    }

    /// Takes `count` empty blocks; `None`, and nothing taken, if there are fewer.
    pub(crate) fn allocate(&mut self, count: usize) -> Option<Vec<BlockId>> {
        let at = self.free.len().checked_sub(count)?;
        let taken: Vec<BlockId> = self.free.drain(at..).rev().collect();
        for id in &taken {
            let block = &mut self.blocks[*id as usize];
            if let Some(hash) = block.hash.take() {
                self.cached.remove(&hash);
            }
            block.tokens.clear();
            block.users = 1;
        }
        Some(taken)
    }

    /// Gives blocks back; what they hold can still be found by its hash.
    pub(crate) fn release(&mut self, ids: &[BlockId]) {
        // The end of a prompt first, so that its beginning, which more prompts share, is kept longest.
        for id in self.drop_user(ids).into_iter().rev() {
            match self.blocks[id as usize].hash {
                Some(_) => self.free.push_front(id),
                None => self.free.push_back(id),
            }
        }
    }

    /// Gives blocks back to be overwritten next, so that a read of an expired handle shows.
    pub(crate) fn recycle(&mut self, ids: &[BlockId]) {
        let idle = self.drop_user(ids);
        self.free.extend(idle);
    }

    fn drop_user(&mut self, ids: &[BlockId]) -> Vec<BlockId> {
        let mut idle = Vec::new();
        for id in ids {
            let block = &mut self.blocks[*id as usize];
            block.users = block.users.saturating_sub(1);
            if block.users == 0 {
                idle.push(*id);
            }
        }
        idle
    }

    /// Sets what a block holds.
    pub(crate) fn write(&mut self, id: BlockId, tokens: &[u32]) {
        self.blocks[id as usize].tokens = tokens.to_vec();
    }

    /// What a block holds now, whoever wrote it; `None` if there is no such block.
    pub(crate) fn read(&self, id: BlockId) -> Option<&[u32]> {
        self.blocks.get(id as usize).map(|block| block.tokens.as_slice())
    }

    /// Lets later prompts find a full block. The first block with a hash keeps it.
    pub(crate) fn remember(&mut self, id: BlockId, hash: u64) {
        if let std::collections::hash_map::Entry::Vacant(entry) = self.cached.entry(hash) {
            entry.insert(id);
            self.blocks[id as usize].hash = Some(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycled_blocks_are_handed_out_next() {
        let mut pool = BlockPool::new(8);
        let first = pool.allocate(3).unwrap();
        assert_eq!(first, [1, 2, 3]);
        pool.remember(1, 77);
        pool.recycle(&first);
        let mut second = pool.allocate(3).unwrap();
        second.sort_unstable();
        assert_eq!(second, [1, 2, 3]);
        assert!(pool.longest_prefix(&[77]).is_empty(), "an overwritten block cannot be found any more");
    }

    #[test]
    fn cached_blocks_go_last() {
        let mut pool = BlockPool::new(3);
        let blocks = pool.allocate(2).unwrap();
        pool.remember(blocks[0], 5);
        pool.release(&blocks);
        let fresh = pool.allocate(2).unwrap();
        assert!(!fresh.contains(&blocks[0]));
        assert_eq!(pool.longest_prefix(&[5, 6]), [blocks[0]]);
    }

    #[test]
    fn content_stays_until_the_block_is_handed_out_again() {
        let mut pool = BlockPool::new(1);
        let blocks = pool.allocate(1).unwrap();
        pool.write(blocks[0], &[4, 2]);
        pool.release(&blocks);
        assert_eq!(pool.read(blocks[0]), Some(&[4, 2][..]));
        pool.allocate(1).unwrap();
        assert_eq!(pool.read(blocks[0]), Some(&[][..]));
        assert_eq!(pool.read(99), None);
    }

    #[test]
    fn shared_blocks_stay_taken_until_their_last_user_goes() {
        let mut pool = BlockPool::new(2);
        let blocks = pool.allocate(1).unwrap();
        pool.share(&blocks);
        pool.release(&blocks);
        assert_eq!(pool.free_count(), 1);
        pool.release(&blocks);
        assert_eq!(pool.free_count(), 2);
        assert!(pool.allocate(3).is_none());
        assert_eq!(pool.free_count(), 2, "a failed allocation takes nothing");
    }
}
