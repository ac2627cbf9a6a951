//! What is found under which tokens, and until when.

use super::*;

#[test]
fn b010_colliding_hashes_do_not_share_blocks() {
    let mut pool = BlockPool::new(PoolConfig { hash_bits: 1, ..PoolConfig::new(8, 2, 42) }).unwrap();
    // Three prompts under two possible hashes: at least two collide.
    let prompts = [[1, 2], [3, 4], [5, 6]];
    let blocks: Vec<_> = prompts.iter().map(|prompt| run(&mut pool, T1, prompt)).collect();
    for (prompt, blocks) in prompts.iter().zip(&blocks) {
        assert_eq!(hits(&pool, T1, prompt), ids(blocks));
    }
    assert_eq!(pool.num_used(), 3);
}

#[test]
fn b010_same_tokens_after_colliding_parents_are_different_prefixes() {
    let mut pool = BlockPool::new(PoolConfig { hash_bits: 1, ..PoolConfig::new(16, 1, 42) }).unwrap();
    let blocks: Vec<_> = (1..=3).map(|first| run(&mut pool, T1, &[first, 9, 9])).collect();
    for (first, blocks) in (1..=3).zip(&blocks) {
        assert_eq!(hits(&pool, T1, &[first, 9, 9]), ids(blocks));
    }
    assert_eq!(pool.num_used(), 9);
}

#[test]
fn b012_nothing_is_found_before_it_is_written() {
    let mut pool = pool(8, 4);
    let blocks = admit(&mut pool, T1, &tokens(8)).unwrap();
    assert_eq!(hits(&pool, T1, &tokens(8)), [0; 0]);
    pool.register(blocks[0], NodeRef::root(T1), &tokens(4));
    assert_eq!(hits(&pool, T1, &tokens(8)), [blocks[0].0]);
}

#[test]
fn b014_a_forgotten_block_hides_what_follows_until_it_is_written_again() {
    let mut pool = pool(8, 4);
    let blocks = run(&mut pool, T1, &tokens(12));
    assert!(pool.forget(blocks[1]));
    assert!(!pool.forget(blocks[1]));
    assert_eq!((hits(&pool, T1, &tokens(12)), pool.ref_count(blocks[1])), (ids(&blocks[..1]), 1));
    write(&mut pool, T1, &tokens(12), &blocks);
    assert_eq!(hits(&pool, T1, &tokens(12)), ids(&blocks));
}

#[test]
fn b014_a_forgotten_free_block_is_reused_first() {
    let mut pool = pool(4, 4);
    let blocks = run(&mut pool, T1, &tokens(12));
    end(&mut pool, &blocks);
    assert_eq!(free(&pool), [4, 3, 2, 1]);
    pool.forget(BlockId(2));
    assert_eq!(free(&pool), [2, 4, 3, 1]);
    pool.check().unwrap();
}

#[test]
fn k003_least_recently_freed_goes_first_and_a_tail_without_its_head_is_not_found() {
    let mut pool = pool(4, 4);
    let old = run(&mut pool, T1, &tokens(8));
    let young = run(&mut pool, T1, &[9; 8]);
    // The head of the old prefix is given back before its tail.
    pool.release(old[0]);
    pool.release(old[1]);
    end(&mut pool, &young);
    assert_eq!(pool.allocate(), Some(old[0]));
    assert_eq!((hits(&pool, T1, &tokens(8)), pool.num_cached()), (vec![], 3));
    assert_eq!(hits(&pool, T1, &[9; 8]), ids(&young));
    // Written again, the head makes the tail findable again.
    pool.register(old[0], NodeRef::root(T1), &tokens(4));
    assert_eq!(hits(&pool, T1, &tokens(8)), ids(&old));
    pool.check().unwrap();
}

#[test]
fn k004_a_block_that_is_handed_out_loses_its_old_content() {
    let mut pool = pool(1, 4);
    let block = run(&mut pool, T1, &tokens(4));
    end(&mut pool, &block);
    assert_eq!(pool.allocate(), Some(block[0]));
    assert_eq!((hits(&pool, T1, &tokens(4)), pool.node_of(block[0]), pool.num_cached()), (vec![], None, 0));
}

#[test]
fn k006_with_caching_off_nothing_is_shared() {
    let config = PoolConfig { prefix_caching: false, ..PoolConfig::new(4, 4, 42) };
    let mut pool = BlockPool::new(config).unwrap();
    let first = run(&mut pool, T1, &tokens(8));
    assert_eq!((hits(&pool, T1, &tokens(8)), pool.num_cached(), pool.node_of(first[0])), (vec![], 0, None));
    let second = run(&mut pool, T1, &tokens(8));
    assert_eq!((ids(&first), ids(&second)), (vec![0, 1], vec![2, 3]));
}

#[test]
fn k007_registering_again_changes_nothing() {
    let mut pool = pool(4, 4);
    let blocks = run(&mut pool, T1, &tokens(8));
    let node = pool.node_of(blocks[1]);
    assert_eq!(Some(write(&mut pool, T1, &tokens(8), &blocks)), node);
    assert_eq!((pool.num_cached(), hits(&pool, T1, &tokens(8))), (2, ids(&blocks)));
}

#[test]
fn k007_the_last_registration_of_a_block_counts() {
    let mut pool = pool(4, 4);
    let blocks = run(&mut pool, T1, &tokens(8));
    // Under its own former node, which only this child now keeps alive.
    let parent = pool.node_of(blocks[0]).unwrap();
    pool.register(blocks[0], parent, &[9; 4]);
    assert_eq!((hits(&pool, T1, &tokens(8)), pool.num_cached()), (vec![], 2));
    pool.check().unwrap();
    // And back to the parent's place from below it.
    pool.register(blocks[0], NodeRef::root(T1), &tokens(4));
    assert_eq!(hits(&pool, T1, &tokens(8)), ids(&blocks));
    pool.check().unwrap();
}

#[test]
fn k008_namespaces_do_not_share() {
    let mut pool = pool(8, 4);
    let blocks = run(&mut pool, T1, &tokens(8));
    assert_eq!((hits(&pool, T2, &tokens(8)), hits(&pool, T1, &tokens(8))), (vec![], ids(&blocks)));
    assert_ne!(NodeRef::root(T1), NodeRef::root(T2));
}

#[test]
fn k010_reset_is_refused_while_a_block_is_owned() {
    let mut pool = pool(4, 4);
    let blocks = run(&mut pool, T1, &tokens(8));
    let node = pool.node_of(blocks[1]).unwrap();
    assert!(!pool.reset_prefix_cache());
    assert_eq!(hits(&pool, T1, &tokens(8)), ids(&blocks));
    end(&mut pool, &blocks);
    let order = free(&pool);
    assert!(pool.reset_prefix_cache());
    assert_eq!((hits(&pool, T1, &tokens(8)), pool.num_cached(), free(&pool)), (vec![], 0, order));
    pool.check().unwrap();
    // What was remembered from before is not mistaken for what comes after.
    let again = run(&mut pool, T1, &tokens(8));
    assert_ne!(pool.node_of(again[1]), Some(node));
}

#[test]
fn k012_several_blocks_with_one_content_come_and_go_one_by_one() {
    let mut pool = pool(4, 4);
    // Computed side by side: nothing to share yet when the second is admitted.
    let first = admit(&mut pool, T1, &tokens(4)).unwrap();
    let second = admit(&mut pool, T1, &tokens(4)).unwrap();
    let node = write(&mut pool, T1, &tokens(4), &first);
    assert_eq!(write(&mut pool, T1, &tokens(4), &second), node);
    assert_eq!(pool.num_cached(), 2);
    end(&mut pool, &first);
    // Sharing the owned one costs no free block.
    assert_eq!(hits(&pool, T1, &tokens(4)), ids(&second));
    pool.forget(second[0]);
    assert_eq!(hits(&pool, T1, &tokens(4)), ids(&first));
    pool.forget(first[0]);
    assert_eq!((hits(&pool, T1, &tokens(4)), pool.forget(first[0])), (vec![], false));
    pool.check().unwrap();
}

#[test]
fn k012_evicting_one_duplicate_orphans_nobody() {
    let mut pool = pool(3, 4);
    let first = admit(&mut pool, T1, &tokens(4)).unwrap();
    let second = admit(&mut pool, T1, &tokens(8)).unwrap();
    write(&mut pool, T1, &tokens(4), &first);
    write(&mut pool, T1, &tokens(8), &second);
    end(&mut pool, &first);
    assert_eq!(pool.allocate(), Some(first[0]));
    assert_eq!(hits(&pool, T1, &tokens(8)), ids(&second));
    pool.check().unwrap();
}

#[test]
fn a_prompt_may_leave_its_last_block_to_be_run() {
    let mut pool = pool(4, 4);
    let blocks = run(&mut pool, T1, &tokens(8));
    let mut hits = Vec::new();
    let end = pool.lookup(T1, &tokens(8), (8 - 1) / 4, &mut hits);
    assert_eq!((ids(&hits), Some(end)), (ids(&blocks[..1]), pool.node_of(blocks[0])));
    hits.clear();
    assert_eq!((pool.lookup(T1, &tokens(8), 0, &mut hits), hits.len()), (NodeRef::root(T1), 0));
}

#[test]
fn what_is_registered_under_a_dead_parent_is_not_stored() {
    let mut pool = pool(4, 4);
    let blocks = admit(&mut pool, T1, &tokens(8)).unwrap();
    let parent = pool.register(blocks[0], NodeRef::root(T1), &tokens(4));
    pool.forget(blocks[0]);
    let child = pool.register(blocks[1], parent, &tokens(8)[4..]);
    assert_eq!((pool.node_of(blocks[1]), pool.num_cached()), (None, 0));
    // The hash is the one it would have had.
    let end = write(&mut pool, T1, &tokens(8), &blocks);
    assert_ne!(child, end);
    assert_eq!(child.hash(), end.hash());
}
