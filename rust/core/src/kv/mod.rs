//! KV memory: fixed blocks, their owners, and the prefix cache.
//!
//! A worker's KV cache is cut into `num_blocks` *blocks* of `block_size` tokens. [`BlockPool`] decides which block holds
//! what; it never sees the bytes. Two independent facts describe a block:
//!
//! | | **findable** (registered: its tokens are known) | not findable |
//! |---|---|---|
//! | **owned** (reference count > 0) | a full block that others may share | being written, or a partial tail |
//! | **free** (on the free list) | cached: revived by a hit, evicted when handed out | empty |
//!
//! * **Owners** are counted, not named: a request, a transfer and a lease are one owner each. Reference counts change only
//!   with ownership.
//! * **The free list** is in least-recently-used order: blocks without content first, then cached blocks, oldest first.
//!   A request gives its blocks back last block first, so that a suffix is evicted before its prefix.
//! * **The prefix cache** is a forest of *nodes*, one per (parent node, tokens of a block), with one root per
//!   [`Namespace`]. It is indexed by a chained hash, but identity is the parent and the tokens themselves: a hash collision
//!   costs time, never correctness. Several blocks may hold the content of one node (two requests computed the same
//!   prompt side by side); evicting one of them leaves the others findable. A node dies with its last block and last
//!   child, and no id is used twice, so a node that outlives its blocks can never be mistaken for another prefix.
//!
//! A block becomes findable when the caller says so ([`BlockPool::register`]), which is at the completion of the step that
//! wrote it or when all its transferred tokens have arrived, never when it is merely planned.
//!
//! Every operation on one block takes constant time, and nothing allocates memory in steady state. A cached block costs 24
//! bytes, its node 32, the node's place in the index 6 to 12, and its tokens 4 each.
//!
//! **Deliberately absent**: fences (a block that a step in flight may touch simply keeps an owner), requests, bytes,
//! and clocks (recency is the order of the calls).
//!
//! ```
//! use pdsched_core::kv::{BlockPool, Namespace, PoolConfig};
//!
//! let mut pool = BlockPool::new(PoolConfig::new(8, 2, 42)).unwrap();
//! let (tenant, prompt) = (Namespace(1), [10, 11, 12, 13, 14]);
//!
//! // The first request computes three blocks; the two full ones become findable once written.
//! let (mut first, mut hits) = (Vec::new(), Vec::new());
//! let mut node = pool.lookup(tenant, &prompt, u32::MAX, &mut hits);
//! pool.take(&hits, 3, &mut first).unwrap();
//! for (block, tokens) in first.iter().zip(prompt.chunks_exact(2)) {
//!     node = pool.register(*block, node, tokens);
//! }
//!
//! // The second shares them and takes one block of its own.
//! let mut second = Vec::new();
//! pool.lookup(tenant, &prompt, u32::MAX, &mut hits);
//! pool.take(&hits, 1, &mut second).unwrap();
//! assert_eq!(second[..2], first[..2]);
//! assert_eq!(pool.ref_count(first[0]), 2);
//!
//! pool.release_all(&first);
//! pool.release_all(&second);
//! assert_eq!((pool.num_free(), pool.num_cached()), (8, 2));
//! # pool.check().unwrap();
//! ```

mod check;
mod error;
mod forest;
mod free_list;
mod hash;
mod pool;
mod prefix;
mod ring;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use std::fmt;

pub use error::PoolError;
pub use forest::NodeRef;
pub use hash::BlockHasher;
pub use pool::{BlockPool, PoolConfig};

/// One block of a pool: an index into the worker's KV cache, in `0..num_blocks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The id as an index into per-block arrays.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Who may share prefixes with whom: the same tokens in two namespaces never match. Whoever authenticates the tenant
/// chooses it (adapters that change the KV contents belong in it too); it must not come from a request's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(pub u64);
