//! Consistency checks: every link, counter and index of a [`BlockPool`] recomputed from the others.
//!
//! Tests run them after every event, debug builds when idle. They take time and memory in proportion to the pool.

use super::forest::Forest;
use super::prefix::PrefixCache;
use super::ring::NIL;
use super::{BlockId, BlockPool};

/// `Err` with a formatted text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

impl BlockPool {
    /// Verifies the pool against itself: each usable block is free or owned, never both or neither; the free list is intact,
    /// as long as its counter, and holds unfindable blocks before findable ones; nodes and blocks point at each other; no
    /// node lives without a block or a child; the index finds every node, under its own hash; no two nodes are the same
    /// prefix.
    ///
    /// # Errors
    /// Says what is wrong and where.
    pub fn check(&self) -> Result<(), String> {
        self.check_free_list()?;
        check_blocks_of_nodes(&self.prefix, &self.refs)?;
        check_tree(&self.prefix.forest)?;
        check_index(&self.prefix.forest)?;
        self.check_hashes()
    }

    /// Verifies that every reference count is the number of times that the block occurs in `owners`: one entry per owner
    /// and block, in any order.
    ///
    /// # Errors
    /// Names the first block whose count differs.
    ///
    /// ```
    /// use pdsched_core::kv::{BlockPool, PoolConfig};
    ///
    /// let mut pool = BlockPool::new(PoolConfig::new(4, 16, 42)).unwrap();
    /// let block = pool.allocate().unwrap();
    /// pool.retain(block);
    /// assert_eq!(pool.check_owners([block]).unwrap_err(), "block 0 has 2 references, but 1 owners");
    /// pool.check_owners([block, block]).unwrap();
    /// ```
    pub fn check_owners(&self, owners: impl IntoIterator<Item = BlockId>) -> Result<(), String> {
        let mut expected = vec![0u32; self.refs.len()];
        for owner in owners {
            let count = expected.get_mut(owner.index());
            *count.ok_or_else(|| format!("somebody owns block {owner}, which is not in the pool"))? += 1;
        }
        for (block, (refs, owners)) in self.refs.iter().zip(&expected).enumerate() {
            ensure!(refs == owners, "block {block} has {refs} references, but {owners} owners");
        }
        Ok(())
    }

    fn check_free_list(&self) -> Result<(), String> {
        let mut listed = vec![false; self.refs.len()];
        let (mut len, mut cached) = (0, None);
        for block in self.free.iter() {
            ensure!(self.free.links_agree(block), "free list: a neighbour of block {block} does not link back");
            ensure!(!std::mem::replace(&mut listed[block.index()], true), "free list: block {block} is on it twice");
            match (self.prefix.is_findable(block), cached) {
                (true, _) => cached = Some(block),
                (false, Some(cached)) => return Err(format!("free list: empty block {block} behind cached {cached}")),
                (false, None) => {}
            }
            len += 1;
        }
        ensure!(len == self.free.len(), "free list: holds {len} blocks, counts {}", self.free.len());
        for (block, (&refs, &listed)) in self.refs.iter().zip(&listed).enumerate() {
            let usable = block >= self.config.reserved_blocks as usize;
            ensure!(usable || (refs == 0 && !listed), "reserved block {block} was handed out");
            ensure!(!usable || listed == (refs == 0), "block {block} has {refs} owners, on the free list: {listed}");
            ensure!(listed == self.free.contains(BlockId(block as u32)), "block {block} has stale free-list links");
        }
        Ok(())
    }

    fn check_hashes(&self) -> Result<(), String> {
        let forest = &self.prefix.forest;
        for (slot, node) in live(forest).filter(|(_, node)| !node.is_root()) {
            let (parent, tokens) = (&forest.nodes[node.parent as usize], forest.tokens(slot));
            let hash = self.hasher.chain(parent.hash, tokens);
            ensure!(node.hash == hash, "node {slot} has hash {:#x}, its tokens and parent {hash:#x}", node.hash);
            ensure!(forest.find(node.parent, tokens, hash) == Some(slot), "node {slot} is not what its tokens lead to");
        }
        Ok(())
    }
}

fn live(forest: &Forest) -> impl Iterator<Item = (u32, &super::forest::Node)> {
    (0u32..).zip(&forest.nodes).filter(|(_, node)| node.is_alive())
}

/// Nodes point at blocks that point at them, all of them and no others, the owned ones first.
fn check_blocks_of_nodes(prefix: &PrefixCache, refs: &[u32]) -> Result<(), String> {
    let mut reached = 0;
    for (slot, node) in live(&prefix.forest) {
        let mut free_sibling = None;
        for block in prefix.siblings.iter(node.block) {
            let (at, index) = (prefix.node_of[block as usize], block as usize);
            ensure!(at == slot, "block {block} is listed at node {slot}, but says {at}");
            let next = prefix.siblings.next(block);
            ensure!(
                next != NIL && prefix.siblings.prev(next) == block,
                "node {slot}: links of block {block} are broken"
            );
            match (refs[index], free_sibling) {
                (0, _) => free_sibling = Some(block),
                (_, Some(free)) => return Err(format!("node {slot}: owned block {block} comes after free {free}")),
                (_, None) => {}
            }
            reached += 1;
        }
    }
    let registered = prefix.node_of.iter().filter(|&&slot| slot != NIL).count();
    ensure!(reached == registered, "{registered} blocks say that they are at a node, {reached} are");
    ensure!(
        registered == prefix.num_blocks as usize,
        "{registered} blocks are findable, counted {}",
        prefix.num_blocks
    );
    Ok(())
}

/// Every parent lives and counts its children; every slot is in use, empty or spent.
fn check_tree(forest: &Forest) -> Result<(), String> {
    let mut children = vec![0u32; forest.nodes.len()];
    for (slot, node) in live(forest) {
        ensure!(node.generation > 0, "live node {slot} in a spent slot");
        if node.is_root() {
            ensure!(node.block == NIL, "root {slot} has block {}", node.block);
            continue;
        }
        let parent = forest.nodes.get(node.parent as usize);
        ensure!(parent.is_some_and(|parent| parent.is_alive()), "parent {} of node {slot} is dead", node.parent);
        children[node.parent as usize] += 1;
    }
    let mut empty = vec![false; forest.nodes.len()];
    for &slot in &forest.empty_slots {
        ensure!(!std::mem::replace(&mut empty[slot as usize], true), "slot {slot} is empty twice");
    }
    for (slot, node) in forest.nodes.iter().enumerate() {
        ensure!(
            node.children == children[slot],
            "node {slot} counts {} children, has {}",
            node.children,
            children[slot]
        );
        let vacant = !node.is_alive() && node.generation > 0;
        ensure!(empty[slot] == vacant, "slot {slot} is listed as empty: {}, vacant: {vacant}", empty[slot]);
    }
    Ok(())
}

/// The buckets hold every live node once, where its hash says, and nothing else.
fn check_index(forest: &Forest) -> Result<(), String> {
    let mut indexed = vec![false; forest.nodes.len()];
    for (bucket, &first) in forest.buckets.iter().enumerate() {
        let mut slot = first;
        while slot != NIL {
            let node = &forest.nodes[slot as usize];
            ensure!(!std::mem::replace(&mut indexed[slot as usize], true), "index: node {slot} is in it twice");
            ensure!(forest.bucket(node.hash) == bucket, "index: node {slot} is in the wrong bucket {bucket}");
            slot = node.next;
        }
    }
    for (slot, node) in forest.nodes.iter().enumerate() {
        let (indexed, alive) = (indexed[slot], node.is_alive());
        ensure!(indexed == alive, "index: node {slot} is in it: {indexed}, alive: {alive}");
    }
    Ok(())
}
