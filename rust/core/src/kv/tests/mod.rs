//! The pool's behaviour, case by case. Names carry the ids of the field reports and peer tests that they answer.

mod cache;
mod check;
mod forest;
mod owners;

use super::{BlockId, BlockPool, Namespace, NodeRef, PoolConfig, PoolError};

const T1: Namespace = Namespace(1);
const T2: Namespace = Namespace(2);

/// `usable` blocks with the ids 1 to `usable`; block 0 is reserved.
fn pool(usable: u32, block_size: u32) -> BlockPool {
    BlockPool::new(PoolConfig { reserved_blocks: 1, ..PoolConfig::new(usable + 1, block_size, 42) }).unwrap()
}

fn ids(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.0).collect()
}

fn free(pool: &BlockPool) -> Vec<u32> {
    ids(&pool.free_order())
}

fn hits(pool: &BlockPool, ns: Namespace, tokens: &[u32]) -> Vec<u32> {
    let mut hits = Vec::new();
    pool.lookup(ns, tokens, u32::MAX, &mut hits);
    ids(&hits)
}

/// Admits a request for all its tokens, reusing what is cached. Nothing of it is written yet.
fn admit(pool: &mut BlockPool, ns: Namespace, tokens: &[u32]) -> Result<Vec<BlockId>, PoolError> {
    let (mut hits, mut blocks) = (Vec::new(), Vec::new());
    pool.lookup(ns, tokens, u32::MAX, &mut hits);
    let needed = (tokens.len() as u32).div_ceil(pool.config().block_size);
    pool.take(&hits, needed - hits.len() as u32, &mut blocks)?;
    pool.check().unwrap();
    Ok(blocks)
}

/// Registers the full blocks of a request, as the completion of its steps does.
fn write(pool: &mut BlockPool, ns: Namespace, tokens: &[u32], blocks: &[BlockId]) -> NodeRef {
    let block_size = pool.config().block_size as usize;
    let full = tokens.chunks_exact(block_size).zip(blocks);
    let end = full.fold(NodeRef::root(ns), |parent, (tokens, &block)| pool.register(block, parent, tokens));
    pool.check().unwrap();
    end
}

/// Admits and writes.
fn run(pool: &mut BlockPool, ns: Namespace, tokens: &[u32]) -> Vec<BlockId> {
    let blocks = admit(pool, ns, tokens).unwrap();
    write(pool, ns, tokens, &blocks);
    blocks
}

fn end(pool: &mut BlockPool, blocks: &[BlockId]) {
    pool.release_all(blocks);
    pool.check().unwrap();
}

fn tokens(n: u32) -> Vec<u32> {
    (1..=n).collect()
}

/// `head` and then tokens that occur nowhere else.
fn diverging(head: &[u32], len: usize, tail: u32) -> Vec<u32> {
    head.iter().copied().chain((0..).map(|i| tail * 1000 + i)).take(len).collect()
}
