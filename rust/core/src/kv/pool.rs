//! [`BlockPool`]: owners, the free list and the prefix cache put together.

use super::free_list::FreeList;
use super::hash::BlockHasher;
use super::prefix::PrefixCache;
use super::{BlockId, Namespace, NodeRef, PoolError};

/// What a [`BlockPool`] looks like. Checked by [`BlockPool::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Blocks in the KV cache, reserved ones included; below 2³² − 1.
    pub num_blocks: u32,
    /// Tokens per block, at least 1.
    pub block_size: u32,
    /// The ids `0..reserved_blocks` are never handed out, such as the null block of another engine.
    pub reserved_blocks: u32,
    /// Whether blocks can be found by their tokens.
    pub prefix_caching: bool,
    /// Seed of the block hashes. The core draws no random numbers: whoever starts the process passes a secret one.
    pub hash_seed: u64,
    /// Bits of the block hash in use, 1 to 64. Fewer than 64 make collisions common, for tests.
    pub hash_bits: u32,
}

impl PoolConfig {
    /// Prefix caching on, whole hashes, nothing reserved.
    pub fn new(num_blocks: u32, block_size: u32, hash_seed: u64) -> Self {
        Self { num_blocks, block_size, reserved_blocks: 0, prefix_caching: true, hash_seed, hash_bits: 64 }
    }

    fn validate(&self) -> Result<(), PoolError> {
        let refuse = |field, value: u32, reason: String| {
            Err(PoolError::InvalidConfig { field, value: u64::from(value), reason })
        };
        if self.num_blocks == u32::MAX {
            return refuse("num_blocks", self.num_blocks, format!("must be below {}", u32::MAX));
        }
        if self.num_blocks <= self.reserved_blocks {
            let reason = format!("must exceed reserved_blocks = {}", self.reserved_blocks);
            return refuse("num_blocks", self.num_blocks, reason);
        }
        if self.block_size == 0 {
            return refuse("block_size", self.block_size, "must be at least 1".to_owned());
        }
        if !(1..=64).contains(&self.hash_bits) {
            return refuse("hash_bits", self.hash_bits, "must be 1 to 64".to_owned());
        }
        Ok(())
    }
}

/// The blocks of one KV cache: who owns how many, which are free, and which can be found by their tokens.
///
/// The [module](super) explains the concept. Methods that take a block panic, naming it, when it is not in the pool or when
/// the caller claims to own a block that nobody owns: going on would hand one block to two requests.
#[derive(Clone, Debug)]
pub struct BlockPool {
    pub(super) config: PoolConfig,
    pub(super) hasher: BlockHasher,
    /// Owners per block.
    pub(super) refs: Vec<u32>,
    pub(super) free: FreeList,
    pub(super) prefix: PrefixCache,
}

impl BlockPool {
    /// A pool with every usable block free, lowest id first.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] names the field that is out of range.
    ///
    /// ```
    /// use pdsched_core::kv::{BlockPool, PoolConfig};
    ///
    /// let error = BlockPool::new(PoolConfig::new(0, 16, 42)).unwrap_err();
    /// assert_eq!(error.to_string(), "invalid pool config: num_blocks = 0, must exceed reserved_blocks = 0");
    /// ```
    pub fn new(config: PoolConfig) -> Result<Self, PoolError> {
        config.validate()?;
        let expected_nodes = if config.prefix_caching { config.num_blocks - config.reserved_blocks } else { 0 };
        Ok(Self {
            hasher: BlockHasher::new(config.hash_seed, config.hash_bits),
            refs: vec![0; config.num_blocks as usize],
            free: FreeList::new(config.num_blocks, config.reserved_blocks),
            prefix: PrefixCache::new(config.num_blocks, config.block_size, expected_nodes),
            config,
        })
    }

    /// What the pool was made from.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Blocks that can be handed out at all: free and used.
    #[inline]
    pub fn num_usable(&self) -> u32 {
        self.config.num_blocks - self.config.reserved_blocks
    }

    /// Blocks without an owner, cached ones included.
    #[inline]
    pub fn num_free(&self) -> u32 {
        self.free.len()
    }

    /// Blocks with at least one owner.
    #[inline]
    pub fn num_used(&self) -> u32 {
        self.num_usable() - self.num_free()
    }

    /// Findable blocks, free or owned. Counts those, too, that no lookup reaches at present because a block before them
    /// was evicted: they come back with it.
    #[inline]
    pub fn num_cached(&self) -> u32 {
        self.prefix.num_blocks
    }

    /// Finds the longest cached prefix of `tokens`: whole blocks, at most `max_blocks` of them, appended to `hits` in order.
    /// Returns the prefix where they end. Changes nothing; in particular the hits are not yet owned and a later call may
    /// evict them, so look up again rather than remember. Where several blocks hold the same content an owned one is
    /// chosen, because sharing it costs no free block.
    ///
    /// A prompt whose last token must be run passes `(tokens.len() - 1) / block_size` as `max_blocks`.
    pub fn lookup(&self, ns: Namespace, tokens: &[u32], max_blocks: u32, hits: &mut Vec<BlockId>) -> NodeRef {
        if !self.config.prefix_caching {
            return NodeRef::root(ns);
        }
        self.prefix.lookup(&self.hasher, ns, tokens, max_blocks, hits)
    }

    /// Gives the caller one more share of every block in `hits` and `n_new` blocks of its own, appended to `out`: all or
    /// nothing. A hit that is free leaves the free list and so counts as consumption; hits are never evicted to make the
    /// new blocks.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`]; then nothing has changed, neither counts, nor order, nor cache, nor `out`.
    ///
    /// # Panics
    /// If a hit is neither owned nor findable: it was looked up before something evicted it.
    ///
    /// ```
    /// use pdsched_core::kv::{BlockPool, PoolConfig};
    ///
    /// let mut pool = BlockPool::new(PoolConfig::new(4, 16, 42))?;
    /// let mut blocks = Vec::new();
    /// assert_eq!(pool.take(&[], 5, &mut blocks).unwrap_err().to_string(), "no space: 5 blocks needed, 4 free");
    /// pool.take(&[], 3, &mut blocks)?;
    /// assert_eq!((blocks.len(), pool.num_free()), (3, 1));
    /// # Ok::<(), pdsched_core::kv::PoolError>(())
    /// ```
    pub fn take(&mut self, hits: &[BlockId], n_new: u32, out: &mut Vec<BlockId>) -> Result<(), PoolError> {
        for &hit in hits {
            let alive = self.refs_of(hit) > 0 || self.prefix.is_findable(hit);
            assert!(alive, "block {hit} is taken as a hit, but it is neither owned nor findable");
        }
        self.claim(hits, n_new)?;
        for &hit in hits {
            if self.free.contains(hit) {
                self.free.remove(hit);
                self.prefix.move_first(hit);
            } else {
                self.add_owner(hit);
            }
        }
        out.extend_from_slice(hits);
        out.reserve(n_new as usize);
        for _ in 0..n_new {
            out.push(self.allocate().expect("the free list holds what was counted"));
        }
        Ok(())
    }

    /// Takes one block from the front of the free list; None if there is none. If it was cached, it is evicted.
    #[inline]
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = self.free.pop_front()?;
        self.prefix.remove(block);
        self.refs[block.index()] = 1;
        Some(block)
    }

    /// Adds an owner to an owned block.
    ///
    /// # Panics
    /// If nobody owns the block.
    #[inline]
    #[track_caller]
    pub fn retain(&mut self, block: BlockId) {
        self.expect_owned(block, "retain");
        self.add_owner(block);
    }

    /// Takes an owner away. With the last one the block becomes free: next to be reused if it is not findable, last if it is.
    ///
    /// # Panics
    /// If nobody owns the block.
    ///
    /// ```should_panic
    /// # use pdsched_core::kv::{BlockPool, PoolConfig};
    /// let mut pool = BlockPool::new(PoolConfig::new(4, 16, 42)).unwrap();
    /// let block = pool.allocate().unwrap();
    /// pool.release(block);
    /// pool.release(block); // release of block 0, which nobody owns
    /// ```
    #[inline]
    #[track_caller]
    pub fn release(&mut self, block: BlockId) {
        self.expect_owned(block, "release");
        self.refs[block.index()] -= 1;
        if self.refs[block.index()] > 0 {
            return;
        }
        if self.prefix.is_findable(block) {
            self.prefix.move_last(block);
            self.free.push_back(block);
        } else {
            self.free.push_front(block);
        }
    }

    /// [Releases](Self::release) the blocks of a request, given in prefix order, last one first: what comes later in a
    /// prefix is evicted earlier.
    ///
    /// # Panics
    /// If a block occurs more often than it has owners.
    #[track_caller]
    pub fn release_all(&mut self, blocks: &[BlockId]) {
        for &block in blocks.iter().rev() {
            self.release(block);
        }
    }

    /// Makes `block`, which is owned and holds the KV of exactly `block_size` `tokens` after the prefix `parent`, findable.
    /// Returns the prefix that it completes, the parent of the next block.
    ///
    /// Several blocks may hold the same prefix, and registering one again changes nothing. The last call counts: a block
    /// that was registered as something else is no longer found as that. With prefix caching off, or when `parent` is no
    /// longer in the cache, nothing is stored and the returned reference is detached.
    ///
    /// # Panics
    /// If nobody owns the block or `tokens` is not one block long.
    #[track_caller]
    pub fn register(&mut self, block: BlockId, parent: NodeRef, tokens: &[u32]) -> NodeRef {
        self.expect_owned(block, "register");
        let (len, block_size) = (tokens.len(), self.config.block_size);
        assert!(len == block_size as usize, "register of {len} tokens, block_size is {block_size}");
        let hash = self.hasher.chain(parent.hash(), tokens);
        if !self.config.prefix_caching {
            return NodeRef::detached(hash);
        }
        self.prefix.register(block, parent, tokens, hash)
    }

    /// The prefix that `block` is findable as.
    pub fn node_of(&self, block: BlockId) -> Option<NodeRef> {
        self.expect_known(block);
        self.prefix.find_node(block)
    }

    /// Makes `block` unfindable, because its content turned out to be bad. Owners keep it; a free block becomes the next
    /// to be reused. False if it was not findable. Blocks computed from it are the caller's to forget.
    pub fn forget(&mut self, block: BlockId) -> bool {
        self.expect_known(block);
        let forgotten = self.prefix.remove(block);
        if forgotten && self.free.contains(block) {
            self.free.remove(block);
            self.free.push_front(block);
        }
        forgotten
    }

    /// Makes every block unfindable (new weights). False, and nothing changed, while any block is owned.
    pub fn reset_prefix_cache(&mut self) -> bool {
        let idle = self.num_used() == 0;
        if idle {
            self.prefix.clear();
        }
        idle
    }

    /// Owners of `block`.
    #[inline]
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.refs_of(block)
    }

    /// The free list, next to be handed out first. For tests: it walks the whole list.
    pub fn free_order(&self) -> Vec<BlockId> {
        self.free.iter().collect()
    }

    /// Checks that the free list can serve `hits` and `n_new` more, and if so counts a first owner for each free hit, which
    /// also keeps a hit that is named twice from being counted twice.
    fn claim(&mut self, hits: &[BlockId], n_new: u32) -> Result<(), PoolError> {
        let mut needed = u64::from(n_new);
        for hit in hits {
            if self.refs[hit.index()] == 0 {
                self.refs[hit.index()] = 1;
                needed += 1;
            }
        }
        if needed <= u64::from(self.num_free()) {
            return Ok(());
        }
        for &hit in hits {
            if self.free.contains(hit) {
                self.refs[hit.index()] = 0;
            }
        }
        Err(PoolError::NoSpace { needed: u32::try_from(needed).unwrap_or(u32::MAX), free: self.num_free() })
    }

    #[inline]
    fn add_owner(&mut self, block: BlockId) {
        let refs = &mut self.refs[block.index()];
        *refs = refs.checked_add(1).expect("fewer than four billion owners");
    }

    #[inline]
    #[track_caller]
    fn refs_of(&self, block: BlockId) -> u32 {
        self.expect_known(block);
        self.refs[block.index()]
    }

    #[inline]
    #[track_caller]
    fn expect_owned(&self, block: BlockId, action: &str) {
        assert!(self.refs_of(block) > 0, "{action} of block {block}, which nobody owns");
    }

    #[inline]
    #[track_caller]
    fn expect_known(&self, block: BlockId) {
        let num_blocks = self.config.num_blocks;
        assert!(block.0 < num_blocks, "block {block} is not in this pool of {num_blocks}");
    }
}
