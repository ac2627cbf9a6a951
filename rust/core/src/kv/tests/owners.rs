//! Who gets which block: owners, the order of reuse, and refusals.

use super::*;

#[test]
fn b001_releasing_a_block_for_both_its_owners_at_once_frees_it_once() {
    let mut pool = pool(8, 16);
    let block = pool.allocate().unwrap();
    pool.retain(block);
    pool.release_all(&[block, block]);
    assert_eq!((pool.ref_count(block), pool.num_free()), (0, 8));
    pool.check().unwrap();
    let mut all = ids(&std::iter::from_fn(|| pool.allocate()).collect::<Vec<_>>());
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(pool.take(&[], 1, &mut Vec::new()), Err(PoolError::NoSpace { needed: 1, free: 0 }));
}

#[test]
#[should_panic(expected = "release of block 1, which nobody owns")]
fn b001_double_free_panics() {
    let mut pool = pool(8, 16);
    let block = pool.allocate().unwrap();
    pool.release_all(&[block, block]);
}

#[test]
fn b002_reused_blocks_are_not_counted_as_capacity_too() {
    let mut pool = pool(10, 16);
    let a = run(&mut pool, T1, &tokens(96));
    end(&mut pool, &a);
    // 4 hits + 6 new is all there is.
    let b = admit(&mut pool, T1, &diverging(&tokens(64), 160, 7)).unwrap();
    assert_eq!((b[..4].to_vec(), b.len(), pool.num_free()), (a[..4].to_vec(), 10, 0));
}

#[test]
fn b002_refusal_has_no_side_effect() {
    let mut pool = pool(10, 16);
    let a = run(&mut pool, T1, &tokens(96));
    end(&mut pool, &a);
    let order = free(&pool);
    let refused = admit(&mut pool, T1, &diverging(&tokens(64), 176, 7));
    assert_eq!(refused, Err(PoolError::NoSpace { needed: 11, free: 10 }));
    assert!(a.iter().all(|&block| pool.ref_count(block) == 0));
    assert_eq!((free(&pool), pool.num_cached()), (order, 6));
    pool.check().unwrap();
}

#[test]
fn b018_a_remembered_hit_that_was_evicted_is_refused_loudly() {
    let mut pool = pool(2, 4);
    let blocks = run(&mut pool, T1, &tokens(4));
    end(&mut pool, &blocks);
    let other = run(&mut pool, T1, &[9; 4]);
    let evicting = pool.allocate().unwrap();
    assert_eq!(evicting, blocks[0]);
    pool.release(evicting);
    let stale = std::panic::catch_unwind(move || pool.take(&blocks, 0, &mut Vec::new()));
    let text = *stale.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(text, "block 1 is taken as a hit, but it is neither owned nor findable");
    assert_eq!(ids(&other), [2]);
}

#[test]
fn b019_an_owned_prefix_survives_a_split_and_eviction_of_everything_else() {
    let mut pool = pool(6, 4);
    let first = run(&mut pool, T1, &tokens(8));
    end(&mut pool, &first);
    let held = admit(&mut pool, T1, &tokens(8)).unwrap();
    let split = run(&mut pool, T1, &[1, 2, 3, 4, 9, 10, 11, 12]);
    assert_eq!((split[0], pool.num_used(), pool.num_cached()), (held[0], 3, 3));
    end(&mut pool, &split);
    // All that can be evicted.
    let mut rest = Vec::new();
    pool.take(&[], pool.num_free(), &mut rest).unwrap();
    assert_eq!(rest.len(), 4);
    assert_eq!(hits(&pool, T1, &tokens(8)), ids(&held));
    end(&mut pool, &rest);
    end(&mut pool, &held);
    assert_eq!((pool.num_free(), pool.num_cached()), (6, 2));
}

#[test]
fn b021_a_partial_match_owns_no_more_than_it_matched() {
    let mut pool = pool(8, 4);
    let all = run(&mut pool, T1, &tokens(12));
    end(&mut pool, &all);
    let partial = admit(&mut pool, T1, &tokens(8)).unwrap();
    assert_eq!((ids(&partial), pool.num_used(), pool.ref_count(all[2])), (ids(&all[..2]), 2, 0));
    let diverged = run(&mut pool, T1, &diverging(&tokens(8), 12, 5));
    assert_eq!(diverged[..2], partial[..]);
    end(&mut pool, &partial);
    end(&mut pool, &diverged);
    assert_eq!((pool.num_free(), pool.num_used()), (8, 0));
}

#[test]
fn k001_shared_prefix_and_order_of_reuse() {
    let mut pool = pool(10, 16);
    let first = run(&mut pool, T1, &tokens(55));
    assert_eq!((ids(&first), pool.num_cached()), (vec![1, 2, 3, 4], 3));
    let second = run(&mut pool, T1, &diverging(&tokens(48), 55, 7));
    assert_eq!((ids(&second), pool.ref_count(BlockId(3))), (vec![1, 2, 3, 5], 2));
    end(&mut pool, &first);
    end(&mut pool, &second);
    // Partial tails, never used, then cached with the tail of the chain before its head.
    assert_eq!(free(&pool), [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]);
}

#[test]
fn k005_hits_are_not_evicted_for_the_same_request() {
    let mut pool = pool(4, 4);
    let blocks = run(&mut pool, T1, &tokens(8));
    let other = run(&mut pool, T2, &tokens(8));
    end(&mut pool, &blocks);
    end(&mut pool, &other);
    // The hits are the next in the list to be handed out.
    assert_eq!(free(&pool), [2, 1, 4, 3]);
    let again = admit(&mut pool, T1, &diverging(&tokens(8), 16, 7)).unwrap();
    assert_eq!(ids(&again), [1, 2, 4, 3]);
}

#[test]
fn k009_refused_hits_keep_counts_and_order() {
    let mut pool = pool(6, 4);
    let cached = run(&mut pool, T1, &tokens(12));
    end(&mut pool, &cached);
    let owner = admit(&mut pool, T1, &tokens(4)).unwrap();
    let order = free(&pool);
    let mut out = vec![BlockId(77)];
    // One hit is owned, two are free, one is named twice.
    let named = [cached[0], cached[1], cached[2], cached[1]];
    let refused = pool.take(&named, 4, &mut out);
    assert_eq!(refused, Err(PoolError::NoSpace { needed: 6, free: 5 }));
    assert_eq!((free(&pool), ids(&out)), (order, vec![77]));
    pool.check().unwrap();
    pool.check_owners(owner).unwrap();
    pool.take(&named, 3, &mut out).unwrap();
    assert_eq!((pool.ref_count(cached[0]), pool.ref_count(cached[1]), pool.ref_count(cached[2])), (2, 2, 1));
    pool.check().unwrap();
}

#[test]
fn k016_a_free_hit_counts_as_consumption() {
    let mut pool = pool(2, 4);
    let cached = run(&mut pool, T1, &tokens(4));
    end(&mut pool, &cached);
    let one_more = diverging(&tokens(4), 8, 7);
    let other = pool.allocate().unwrap();
    assert_eq!(admit(&mut pool, T1, &one_more), Err(PoolError::NoSpace { needed: 2, free: 1 }));
    pool.release(other);
    assert_eq!(ids(&admit(&mut pool, T1, &one_more).unwrap()), [1, 2]);
}

#[test]
fn k018_allocating_from_an_empty_pool_is_a_plain_none() {
    let mut pool = pool(1, 4);
    let block = pool.allocate().unwrap();
    assert_eq!((pool.allocate(), pool.num_free(), pool.num_used()), (None, 0, 1));
    end(&mut pool, &[block]);
    assert_eq!(pool.allocate(), Some(block));
}

#[test]
fn misuse_is_named() {
    let panics = |misuse: fn(&mut BlockPool)| {
        let mut pool = pool(4, 4);
        let misuse = std::panic::AssertUnwindSafe(|| misuse(&mut pool));
        *std::panic::catch_unwind(misuse).unwrap_err().downcast::<String>().unwrap()
    };
    assert_eq!(panics(|pool| pool.retain(BlockId(1))), "retain of block 1, which nobody owns");
    assert_eq!(panics(|pool| pool.release(BlockId(0))), "release of block 0, which nobody owns");
    assert_eq!(panics(|pool| pool.release(BlockId(5))), "block 5 is not in this pool of 5");
    let early = panics(|pool| _ = pool.register(BlockId(1), NodeRef::root(T1), &[1; 4]));
    assert_eq!(early, "register of block 1, which nobody owns");
    let partial = panics(|pool| {
        let block = pool.allocate().unwrap();
        pool.register(block, NodeRef::root(T1), &[1; 3]);
    });
    assert_eq!(partial, "register of 3 tokens, block_size is 4");
}

#[test]
fn impossible_configs_are_refused_by_name() {
    let refused = |config: PoolConfig| BlockPool::new(config).unwrap_err().to_string();
    let valid = PoolConfig::new(4, 16, 0);
    let text = "invalid pool config: num_blocks = 4, must exceed reserved_blocks = 4";
    assert_eq!(refused(PoolConfig { reserved_blocks: 4, ..valid.clone() }), text);
    let text = "invalid pool config: num_blocks = 4294967295, must be below 4294967295";
    assert_eq!(refused(PoolConfig { num_blocks: u32::MAX, ..valid.clone() }), text);
    let text = "invalid pool config: block_size = 0, must be at least 1";
    assert_eq!(refused(PoolConfig { block_size: 0, ..valid.clone() }), text);
    let text = "invalid pool config: hash_bits = 65, must be 1 to 64";
    assert_eq!(refused(PoolConfig { hash_bits: 65, ..valid }), text);
}
