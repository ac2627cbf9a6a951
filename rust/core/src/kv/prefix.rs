//! The prefix cache: which blocks hold the content of which node of the [`Forest`].

use super::forest::Forest;
use super::hash::BlockHasher;
use super::ring::{NIL, Rings};
use super::{BlockId, Namespace, NodeRef};

#[derive(Clone, Debug)]
pub(super) struct PrefixCache {
    block_size: usize,
    pub(super) forest: Forest,
    /// Per block: the slot of its node, or [`NIL`].
    pub(super) node_of: Vec<u32>,
    /// Per node: a ring of its blocks, the owned ones first, starting at the node's `block`.
    pub(super) siblings: Rings,
    /// Blocks at a node.
    pub(super) num_blocks: u32,
}

impl PrefixCache {
    /// For the blocks `0..num_blocks`, with room for `expected_nodes` nodes from the start.
    pub(super) fn new(num_blocks: u32, block_size: u32, expected_nodes: u32) -> Self {
        Self {
            block_size: block_size as usize,
            forest: Forest::new(block_size, expected_nodes),
            node_of: vec![NIL; num_blocks as usize],
            siblings: Rings::new(num_blocks),
            num_blocks: 0,
        }
    }

    /// Appends the blocks of the longest findable prefix of `tokens` to `hits`; returns where it ends.
    pub(super) fn lookup(
        &self,
        hasher: &BlockHasher,
        ns: Namespace,
        tokens: &[u32],
        max_blocks: u32,
        hits: &mut Vec<BlockId>,
    ) -> NodeRef {
        let root = NodeRef::root(ns);
        let Some(root_slot) = self.forest.find_root(ns) else {
            return root;
        };
        // The hash runs ahead of the slot: the next block is being hashed while this node is on its way from memory.
        let (mut slot, mut hash) = (root_slot, root.hash());
        for tokens in tokens.chunks_exact(self.block_size).take(max_blocks as usize) {
            hash = hasher.chain(hash, tokens);
            let Some(child) = self.forest.find(slot, tokens, hash) else {
                break;
            };
            let block = self.forest.nodes[child as usize].block;
            if block == NIL {
                break;
            }
            hits.push(BlockId(block));
            slot = child;
        }
        if slot == root_slot { root } else { self.forest.node_ref(slot) }
    }

    /// Puts `block` (owned) at the node of (`parent`, `tokens`), which is made if need be; wherever else the block was
    /// registered, it is no longer. Under a parent that is dead or detached nothing is stored.
    #[inline]
    pub(super) fn register(&mut self, block: BlockId, parent: NodeRef, tokens: &[u32], hash: u64) -> NodeRef {
        let Some(slot) = self.forest.intern(parent, tokens, hash) else {
            self.remove(block);
            return NodeRef::detached(hash);
        };
        let old = self.node_of[block.index()];
        if old != slot {
            // The old node may be the last thing that keeps the parent or the new node alive, so it goes last.
            self.detach(block);
            self.attach(block, slot);
            self.forest.prune(old);
        }
        self.forest.node_ref(slot)
    }

    /// `block` is no longer findable. False if it was not.
    #[inline]
    pub(super) fn remove(&mut self, block: BlockId) -> bool {
        let slot = self.node_of[block.index()];
        if slot == NIL {
            return false;
        }
        self.detach(block);
        self.forest.prune(slot);
        true
    }

    #[inline]
    pub(super) fn is_findable(&self, block: BlockId) -> bool {
        self.node_of[block.index()] != NIL
    }

    pub(super) fn find_node(&self, block: BlockId) -> Option<NodeRef> {
        Some(self.node_of[block.index()]).filter(|&slot| slot != NIL).map(|slot| self.forest.node_ref(slot))
    }

    /// `block` lost its last owner: a lookup now prefers the others with the same content.
    #[inline]
    pub(super) fn move_last(&mut self, block: BlockId) {
        if !self.has_siblings(block) {
            return;
        }
        let next = self.siblings.next(block.0);
        let first = self.first_at_node_of(block);
        if *first == block.0 {
            // In a ring the last place is the one before the first.
            *first = next;
            return;
        }
        let first = *first;
        self.siblings.remove(block.0);
        self.siblings.insert_before(first, block.0);
    }

    /// `block` has an owner again: a lookup prefers it.
    #[inline]
    pub(super) fn move_first(&mut self, block: BlockId) {
        if !self.has_siblings(block) {
            return;
        }
        let first = std::mem::replace(self.first_at_node_of(block), block.0);
        if first != block.0 {
            self.siblings.remove(block.0);
            self.siblings.insert_before(first, block.0);
        }
    }

    /// Forgets everything. References to nodes stay dead.
    pub(super) fn clear(&mut self) {
        self.forest.clear();
        for block in 0..self.node_of.len() as u32 {
            if std::mem::replace(&mut self.node_of[block as usize], NIL) != NIL {
                self.siblings.remove(block);
            }
        }
        self.num_blocks = 0;
    }

    /// Adds `block` to its node's ring, in front: it has an owner.
    #[inline]
    fn attach(&mut self, block: BlockId, slot: u32) {
        self.node_of[block.index()] = slot;
        match std::mem::replace(self.first_at_node_of(block), block.0) {
            NIL => self.siblings.start(block.0),
            first => self.siblings.insert_before(first, block.0),
        }
        self.num_blocks += 1;
    }

    /// Takes `block` out of its node's ring, if it is in one. The node stays, perhaps with nothing to keep it alive.
    #[inline]
    fn detach(&mut self, block: BlockId) {
        if !self.is_findable(block) {
            return;
        }
        let next = self.siblings.next(block.0);
        let first = self.first_at_node_of(block);
        if *first == block.0 {
            *first = if next == block.0 { NIL } else { next };
        }
        self.siblings.remove(block.0);
        self.node_of[block.index()] = NIL;
        self.num_blocks -= 1;
    }

    #[inline]
    fn has_siblings(&self, block: BlockId) -> bool {
        let next = self.siblings.next(block.0);
        next != NIL && next != block.0
    }

    #[inline]
    fn first_at_node_of(&mut self, block: BlockId) -> &mut u32 {
        &mut self.forest.nodes[self.node_of[block.index()] as usize].block
    }
}
