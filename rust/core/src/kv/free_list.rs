//! The free list: blocks without an owner, next to be handed out first.
//!
//! A ring through the block ids with one sentinel behind them, so that taking from the front, putting at either end and
//! reviving from the middle each take constant time and no branch on an empty list.

use super::BlockId;
use super::ring::Rings;

#[derive(Clone, Debug)]
pub(super) struct FreeList {
    rings: Rings,
    /// The element between back and front: one past the last block id.
    sentinel: u32,
    len: u32,
}

impl FreeList {
    /// The blocks `reserved..num_blocks`, in ascending order.
    pub(super) fn new(num_blocks: u32, reserved: u32) -> Self {
        // Sized for the sentinel, which `PoolConfig` keeps within u32.
        let mut list = Self { rings: Rings::new(num_blocks + 1), sentinel: num_blocks, len: 0 };
        list.rings.start(list.sentinel);
        for id in reserved..num_blocks {
            list.push_back(BlockId(id));
        }
        list
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.rings.is_linked(block.0)
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<BlockId> {
        let first = self.rings.next(self.sentinel);
        if first == self.sentinel {
            return None;
        }
        self.remove(BlockId(first));
        Some(BlockId(first))
    }

    /// `block` is handed out next.
    #[inline]
    pub(super) fn push_front(&mut self, block: BlockId) {
        let first = self.rings.next(self.sentinel);
        self.rings.insert_before(first, block.0);
        self.len += 1;
    }

    /// `block` is handed out last.
    #[inline]
    pub(super) fn push_back(&mut self, block: BlockId) {
        self.rings.insert_before(self.sentinel, block.0);
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, block: BlockId) {
        self.rings.remove(block.0);
        self.len -= 1;
    }

    /// Front to back. Bounded even where the links are corrupt.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.rings.iter(self.sentinel).skip(1).map(BlockId)
    }

    /// Whether the neighbours of `block` point back at it.
    pub(super) fn links_agree(&self, block: BlockId) -> bool {
        self.rings.next(self.rings.prev(block.0)) == block.0 && self.rings.prev(self.rings.next(block.0)) == block.0
    }

    /// Breaks the counter, so that a test can see `check` notice.
    #[cfg(test)]
    pub(super) fn corrupt_len(&mut self) {
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(list: &FreeList) -> Vec<u32> {
        list.iter().map(|block| block.0).collect()
    }

    #[test]
    fn k018_starts_with_every_usable_block_in_order() {
        let list = FreeList::new(5, 1);
        assert_eq!(order(&list), [1, 2, 3, 4]);
        assert_eq!(list.len(), 4);
        assert!(!list.contains(BlockId(0)));
    }

    #[test]
    fn k018_removes_from_the_middle_and_puts_at_both_ends() {
        let mut list = FreeList::new(5, 0);
        list.remove(BlockId(2));
        assert_eq!(order(&list), [0, 1, 3, 4]);
        assert_eq!(list.pop_front(), Some(BlockId(0)));
        list.push_back(BlockId(2));
        list.push_front(BlockId(0));
        assert_eq!(order(&list), [0, 1, 3, 4, 2]);
        assert_eq!(list.len(), 5);
        assert!((0..5).all(|id| list.links_agree(BlockId(id))));
    }

    #[test]
    fn k018_popping_from_empty_yields_none_and_the_list_recovers() {
        let mut list = FreeList::new(2, 0);
        assert_eq!([list.pop_front(), list.pop_front(), list.pop_front()], [Some(BlockId(0)), Some(BlockId(1)), None]);
        assert_eq!(list.len(), 0);
        list.push_front(BlockId(1));
        assert_eq!(order(&list), [1]);
    }
}
