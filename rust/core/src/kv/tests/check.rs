//! `check` finds what it should: every kind of damage, done by hand.

use crate::kv::ring::NIL;
use crate::kv::{BlockId, BlockPool, Namespace, NodeRef, PoolConfig};

/// Blocks 1 and 2 hold a prefix of two blocks and are owned, block 3 is free and cached under it, 0 is reserved, the
/// others are free.
fn pool() -> BlockPool {
    let mut pool = BlockPool::new(PoolConfig { reserved_blocks: 1, ..PoolConfig::new(8, 2, 42) }).unwrap();
    let mut blocks = Vec::new();
    pool.take(&[], 3, &mut blocks).unwrap();
    let mut node = NodeRef::root(Namespace(0));
    for (&block, tokens) in blocks.iter().zip([[1, 2], [3, 4], [5, 6]]) {
        node = pool.register(block, node, &tokens);
    }
    pool.release(blocks[2]);
    pool.check().unwrap();
    pool
}

/// What `check` says about a pool after `damage`.
#[track_caller]
fn found(damage: impl FnOnce(&mut BlockPool)) -> String {
    let mut pool = pool();
    damage(&mut pool);
    pool.check().expect_err("the damage goes unnoticed")
}

fn slot_of(pool: &BlockPool, block: usize) -> usize {
    pool.prefix.node_of[block] as usize
}

#[test]
fn notices_blocks_that_are_lost_or_have_two_lives() {
    assert_eq!(found(|pool| pool.refs[1] = 0), "block 1 has 0 owners, on the free list: false");
    assert_eq!(found(|pool| pool.refs[5] = 1), "block 5 has 1 owners, on the free list: true");
    assert_eq!(found(|pool| pool.refs[0] = 1), "reserved block 0 was handed out");
    assert_eq!(found(|pool| pool.free.push_front(BlockId(0))), "reserved block 0 was handed out");
}

#[test]
fn notices_a_free_list_out_of_order_or_out_of_count() {
    assert_eq!(found(|pool| pool.free.corrupt_len()), "free list: holds 5 blocks, counts 6");
    let cached_first = |pool: &mut BlockPool| {
        pool.free.remove(BlockId(3));
        pool.free.push_front(BlockId(3));
    };
    assert_eq!(found(cached_first), "free list: empty block 4 behind cached 3");
}

#[test]
fn notices_blocks_and_nodes_that_disagree() {
    assert_eq!(found(|pool| pool.prefix.num_blocks = 4), "3 blocks are findable, counted 4");
    assert!(found(|pool| pool.prefix.node_of[7] = 2).contains("say that they are at a node"));
    assert!(found(|pool| pool.prefix.node_of[1] = 2).contains("but says 2"));
}

#[test]
fn notices_a_free_duplicate_preferred_to_an_owned_one() {
    let mut pool = pool();
    let twin = pool.allocate().unwrap();
    pool.register(twin, NodeRef::root(Namespace(0)), &[1, 2]);
    pool.release(twin);
    pool.check().unwrap();
    let slot = slot_of(&pool, 1);
    pool.prefix.forest.nodes[slot].block = twin.0;
    assert!(pool.check().unwrap_err().contains("owned block 1 comes after free 4"));
}

#[test]
fn notices_a_damaged_tree() {
    let wrong_count = |pool: &mut BlockPool| {
        let slot = slot_of(pool, 1);
        pool.prefix.forest.nodes[slot].children = 2;
    };
    assert!(found(wrong_count).contains("counts 2 children, has 1"));
    assert!(found(|pool| pool.prefix.forest.empty_slots.push(0)).contains("listed as empty: true, vacant: false"));
    let other_parent = |pool: &mut BlockPool| {
        let slot = slot_of(pool, 2);
        pool.prefix.forest.nodes[slot].parent = slot_of(pool, 3) as u32;
    };
    assert!(found(other_parent).contains("children"));
}

#[test]
fn notices_a_damaged_index() {
    assert!(found(|pool| pool.prefix.forest.buckets.fill(NIL)).contains("is in it: false, alive: true"));
    let other_hash = |pool: &mut BlockPool| {
        let slot = slot_of(pool, 3);
        // Same bucket, so that only the hash itself is wrong.
        pool.prefix.forest.nodes[slot].hash ^= 1 << 63;
    };
    assert!(found(other_hash).contains("has hash"));
}

#[test]
fn owners_must_match_counts_exactly() {
    let pool = pool();
    pool.check_owners([BlockId(2), BlockId(1)]).unwrap();
    assert_eq!(pool.check_owners([BlockId(1)]).unwrap_err(), "block 2 has 1 references, but 0 owners");
    let unknown = pool.check_owners([BlockId(8)]).unwrap_err();
    assert_eq!(unknown, "somebody owns block 8, which is not in the pool");
}
