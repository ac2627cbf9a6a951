//! The forest of prefixes: one tree per namespace, one *node* per (parent, tokens of a block).
//!
//! A node's id is a slot in a slab plus the slot's generation, which grows each time a node there dies: slots are reused,
//! ids never. A node lives as long as a block holds its content or a child hangs from it. Since a child keeps its parent
//! alive, (slot of the parent, own tokens) names the whole path to the root, and comparing these two is comparing the whole
//! prefix, whatever the hash says.
//!
//! The index is a table of buckets with the nodes of a bucket chained through the slab. Unlike a table with open
//! addressing it needs no clean-up under steady insertion and removal, so no step pays for one, and its first
//! step down the chain is usually its last.

use super::Namespace;
use super::ring::NIL;

/// In place of a node's id: the root of a namespace. Ids start above it, since generations start at 1.
const ROOT: u64 = 0;
/// In place of a node's id: a prefix that is not in the cache and cannot get children there. Its slot is [`NIL`].
const DETACHED: u64 = u64::MAX;

/// A prefix: the root of a namespace (the empty prefix), or the whole blocks of tokens that lead to a node of the cache.
///
/// Equal references name the same prefix, and no reference to a dead node ever equals one to a live node. A prefix that
/// could not be stored (caching off, or under a parent that died) is *detached*: it carries its hash, and whatever is
/// registered under it is detached as well. A reference means nothing in another pool, unless it is a root.
// Two words, so that it travels in registers: a third one made `register` twice as slow (failed store forwarding).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeRef {
    /// Generation and slot of a node, [`ROOT`] or [`DETACHED`].
    uid: u64,
    /// Of a root: its namespace, scrambled reversibly, so that it still tells roots apart.
    hash: u64,
}

impl NodeRef {
    /// The empty prefix of `ns`, which every pool knows.
    #[inline]
    pub fn root(ns: Namespace) -> NodeRef {
        NodeRef { uid: ROOT, hash: scramble(ns.0) }
    }

    /// The chained hash of namespace and tokens, as [`BlockHasher::chain`](super::BlockHasher::chain) makes it on top of the
    /// parent's. It identifies nothing: different prefixes may share it.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    #[inline]
    pub(super) fn detached(hash: u64) -> NodeRef {
        NodeRef { uid: DETACHED, hash }
    }

    #[inline]
    fn of(slot: u32, generation: u32, hash: u64) -> NodeRef {
        NodeRef { uid: u64::from(generation) << 32 | u64::from(slot), hash }
    }

    #[inline]
    fn slot(self) -> u32 {
        self.uid as u32
    }

    #[inline]
    fn generation(self) -> u32 {
        (self.uid >> 32) as u32
    }
}

/// A bijection on 64 bits that spreads small numbers (the finaliser of SplitMix64; Steele, Lea, Flood 2014).
#[inline]
fn scramble(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A node, or an empty slot. 32 bytes, half a cache line; its tokens lie in an array of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Of a root: the scrambled namespace, which is its identity. Roots have no tokens.
    pub(super) hash: u64,
    /// Slot of the parent; [`NIL`] for a root.
    pub(super) parent: u32,
    pub(super) children: u32,
    /// A block with this content, an owned one if there is any; [`NIL`] if only children keep the node alive.
    pub(super) block: u32,
    /// Which of the slot's nodes this is, from 1; in an empty slot, which the next one will be. 0: the slot is spent.
    pub(super) generation: u32,
    /// Next node of the same bucket, or [`NIL`].
    pub(super) next: u32,
}

impl Node {
    #[inline]
    pub(super) fn is_alive(&self) -> bool {
        self.block != NIL || self.children > 0
    }

    pub(super) fn is_root(&self) -> bool {
        self.parent == NIL
    }
}

#[derive(Clone, Debug)]
pub(super) struct Forest {
    block_size: usize,
    pub(super) nodes: Vec<Node>,
    /// `block_size` tokens per slot.
    tokens: Vec<u32>,
    pub(super) empty_slots: Vec<u32>,
    /// First node by the low bits of the hash; a power of two of them, at least as many as there are slots.
    pub(super) buckets: Vec<u32>,
}

impl Forest {
    /// `expected_nodes`: how many nodes to make room for at once. More are possible: nodes without a block of their own,
    /// such as those of a sliding window's past, add to those with one.
    pub(super) fn new(block_size: u32, expected_nodes: u32) -> Self {
        let (block_size, expected) = (block_size as usize, expected_nodes as usize);
        let mut tokens = Vec::new();
        // Only a precaution against growing in the middle of a step: room that cannot be had now is asked for when needed.
        let _ = tokens.try_reserve_exact(expected.saturating_mul(block_size));
        Self {
            block_size,
            nodes: Vec::with_capacity(expected),
            tokens,
            empty_slots: Vec::new(),
            // Between 1.5 and 3 per node: fewer make chains, more make cache misses.
            buckets: vec![NIL; (expected + expected / 2).next_power_of_two()],
        }
    }

    /// The root of `ns`, if anything hangs from it.
    pub(super) fn find_root(&self, ns: Namespace) -> Option<u32> {
        self.find_root_by_hash(NodeRef::root(ns).hash)
    }

    /// The child of the live node `parent` that `tokens` lead to. `hash` is theirs.
    #[inline]
    pub(super) fn find(&self, parent: u32, tokens: &[u32], hash: u64) -> Option<u32> {
        self.find_in_bucket(hash, |slot, node| {
            node.hash == hash && node.parent == parent && self.tokens(slot) == tokens
        })
    }

    /// Likewise, and made without a block if it does not exist. None if `parent` is dead or detached.
    #[inline]
    pub(super) fn intern(&mut self, parent: NodeRef, tokens: &[u32], hash: u64) -> Option<u32> {
        let parent = match parent.uid {
            ROOT => self.find_root_by_hash(parent.hash).unwrap_or_else(|| self.add(NIL, parent.hash)),
            _ => self.live_slot(parent)?,
        };
        if let Some(slot) = self.find(parent, tokens, hash) {
            return Some(slot);
        }
        let slot = self.add(parent, hash);
        let start = slot as usize * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.nodes[parent as usize].children += 1;
        Some(slot)
    }

    /// Buries the node in `slot` if nothing keeps it alive any more, then its parent likewise, up to the root.
    pub(super) fn prune(&mut self, mut slot: u32) {
        while slot != NIL && !self.nodes[slot as usize].is_alive() {
            self.unlink(slot);
            self.vacate(slot);
            slot = self.nodes[slot as usize].parent;
            if slot != NIL {
                self.nodes[slot as usize].children -= 1;
            }
        }
    }

    /// Buries every node.
    pub(super) fn clear(&mut self) {
        self.buckets.fill(NIL);
        for slot in 0..self.nodes.len() as u32 {
            let node = &mut self.nodes[slot as usize];
            if node.is_alive() {
                (node.block, node.children) = (NIL, 0);
                self.vacate(slot);
            }
        }
    }

    #[inline]
    pub(super) fn node_ref(&self, slot: u32) -> NodeRef {
        let node = &self.nodes[slot as usize];
        NodeRef::of(slot, node.generation, node.hash)
    }

    #[inline]
    pub(super) fn tokens(&self, slot: u32) -> &[u32] {
        let start = slot as usize * self.block_size;
        &self.tokens[start..start + self.block_size]
    }

    /// The slot of a node that still lives.
    #[inline]
    fn live_slot(&self, at: NodeRef) -> Option<u32> {
        // A reference to the slot's generation of today exists only while its node is alive: the next node's is another.
        let node = self.nodes.get(at.slot() as usize)?;
        (node.generation == at.generation()).then_some(at.slot())
    }

    fn find_root_by_hash(&self, hash: u64) -> Option<u32> {
        self.find_in_bucket(hash, |_, node| node.hash == hash && node.is_root())
    }

    #[inline]
    fn find_in_bucket(&self, hash: u64, is_it: impl Fn(u32, &Node) -> bool) -> Option<u32> {
        let mut slot = self.buckets[self.bucket(hash)];
        while slot != NIL {
            let node = &self.nodes[slot as usize];
            if is_it(slot, node) {
                return Some(slot);
            }
            slot = node.next;
        }
        None
    }

    /// A new node without block, child or tokens.
    #[inline]
    fn add(&mut self, parent: u32, hash: u64) -> u32 {
        let slot = self.empty_slots.pop().unwrap_or_else(|| self.add_slot());
        let bucket = self.bucket(hash);
        let next = std::mem::replace(&mut self.buckets[bucket], slot);
        let node = &mut self.nodes[slot as usize];
        *node = Node { hash, parent, children: 0, block: NIL, generation: node.generation, next };
        slot
    }

    fn add_slot(&mut self) -> u32 {
        let slot = u32::try_from(self.nodes.len()).ok().filter(|&slot| slot != NIL);
        let slot = slot.expect("fewer than four billion nodes in one prefix cache");
        self.nodes.push(Node { hash: 0, parent: NIL, children: 0, block: NIL, generation: 1, next: NIL });
        self.tokens.resize(self.nodes.len() * self.block_size, 0);
        if self.nodes.len() > self.buckets.len() {
            self.double_buckets();
        }
        slot
    }

    #[cold]
    fn double_buckets(&mut self) {
        let buckets = vec![NIL; 2 * self.buckets.len()];
        for mut slot in std::mem::replace(&mut self.buckets, buckets) {
            while slot != NIL {
                let Node { hash, next, .. } = self.nodes[slot as usize];
                let bucket = self.bucket(hash);
                self.nodes[slot as usize].next = std::mem::replace(&mut self.buckets[bucket], slot);
                slot = next;
            }
        }
    }

    /// Takes a node out of its bucket.
    fn unlink(&mut self, slot: u32) {
        let Node { hash, next, .. } = self.nodes[slot as usize];
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == slot {
            self.buckets[bucket] = next;
            return;
        }
        let mut before = self.buckets[bucket];
        while self.nodes[before as usize].next != slot {
            before = self.nodes[before as usize].next;
        }
        self.nodes[before as usize].next = next;
    }

    /// The slot may have another node, of another generation. After 2³² − 1 of them it stays empty for good, which wastes
    /// its few bytes and keeps the promise that no id is used twice.
    #[inline]
    fn vacate(&mut self, slot: u32) {
        let generation = &mut self.nodes[slot as usize].generation;
        *generation = generation.wrapping_add(1);
        if *generation != 0 {
            self.empty_slots.push(slot);
        }
    }

    #[inline]
    pub(super) fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}
