"""BlockPool: owners, order of reuse, all or nothing, a cache that is checked against the tokens."""

from __future__ import annotations

import pytest

from pdsched import BlockPool

from .harness import text


def cached(pool: BlockPool, prompt: list[int], namespace: int = 0) -> list[int]:
    """Allocates, writes and releases a prompt; returns its blocks."""
    size = 16
    taken = pool.allocate(prompt, -(-len(prompt) // size), namespace=namespace)
    assert taken is not None
    blocks: list[int] = taken[0].tolist()
    pool.register(blocks, prompt, namespace=namespace)
    pool.release(blocks)
    pool.check()
    return blocks


def drain(pool: BlockPool) -> list[int]:
    """Takes every block there is, one by one."""
    blocks: list[int] = []
    while (taken := pool.allocate([], 1)) is not None:
        blocks += taken[0].tolist()
        pool.check()
    return blocks


def test_b001_a_shared_block_released_for_both_owners_at_once_is_free_once() -> None:
    pool = BlockPool(8, 16)
    prompt = text(1, 16)
    block = cached(pool, prompt)[0]
    for _ in range(2):
        assert pool.allocate(prompt, 1) is not None
    assert pool.ref_count(block) == 2
    pool.release([block, block])
    assert (pool.ref_count(block), pool.num_free) == (0, 8)
    assert sorted(drain(pool)) == list(range(8))
    assert pool.allocate([], 1) is None


def test_b001_a_double_release_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(8, 16)
    taken = pool.allocate([], 2)
    assert taken is not None
    first, second = taken[0].tolist()
    with pytest.raises(ValueError, match=f"block {first} has 1 owners, 2 named"):
        pool.release([second, first, first])
    assert (pool.ref_count(first), pool.ref_count(second), pool.num_free) == (1, 1, 6)
    pool.check()


def test_b002_reused_blocks_are_not_counted_as_capacity_too() -> None:
    pool = BlockPool(10, 16)
    head = text(1, 64)
    cached(pool, text(1, 96))
    taken = pool.allocate(head + text(2, 96), 10)
    assert taken is not None
    assert (len(set(taken[0].tolist())), taken[1], pool.num_free) == (10, 4, 0)


def test_b002_k009_a_refusal_has_no_side_effect() -> None:
    pool, twin = BlockPool(10, 16), BlockPool(10, 16)
    for each in (pool, twin):
        cached(each, text(1, 96))
    hits = pool.lookup(text(1, 64)).tolist()
    assert pool.allocate(text(1, 64) + text(2, 112), 11) is None
    assert [pool.ref_count(block) for block in hits] == [0] * 4
    assert pool.num_free == 10
    pool.check()
    assert drain(pool) == drain(twin), "the order of eviction changed"


def test_b010_colliding_hashes_share_nothing() -> None:
    pool = BlockPool(64, 16, hash_bits=1)
    first = cached(pool, text(1, 16))
    assert pool.lookup(text(1, 16)).tolist() == first
    for family in range(2, 12):
        assert pool.lookup(text(family, 16)).size == 0
    # The same tokens behind another beginning are another prefix.
    assert pool.lookup(text(2, 16) + text(1, 16)).size == 0


def test_b011_k008_namespaces_do_not_share() -> None:
    pool = BlockPool(16, 16)
    mine = cached(pool, text(1, 64), namespace=1)
    assert pool.lookup(text(1, 64), namespace=2).size == 0
    assert pool.lookup(text(1, 64)).size == 0
    assert pool.lookup(text(1, 64), namespace=1).tolist() == mine


def test_k001_a_shared_prefix_and_the_order_of_reuse() -> None:
    pool = BlockPool(10, 16)
    first = pool.allocate(text(1, 55), 4)
    assert first is not None
    assert pool.register(first[0], text(1, 55)) == 3
    second = pool.allocate(text(1, 48) + text(2, 7), 4)
    assert second is not None
    assert second[1] == 3
    assert [pool.ref_count(int(block)) for block in first[0]] == [2, 2, 2, 1]
    pool.release(first[0])
    pool.release(second[0])
    tail = {int(first[0][3]), int(second[0][3])}
    order = drain(pool)
    never_used = [block for block in range(10) if block not in {*first[0].tolist(), *second[0].tolist()}]
    assert set(order[:2]) <= tail | set(never_used)
    assert order[-3:] == first[0].tolist()[2::-1], "a tail goes before its head, and cached blocks go last"


def test_k003_least_recently_freed_first_and_no_tail_without_its_head() -> None:
    pool = BlockPool(6, 16)
    old, new = cached(pool, text(1, 48)), cached(pool, text(2, 48))
    taken = pool.allocate([], 3)
    assert taken is not None
    assert sorted(taken[0].tolist()) == sorted(old)
    assert pool.lookup(text(1, 48)).size == 0
    assert pool.lookup(text(2, 48)).tolist() == new


def test_k004_a_block_that_is_handed_out_loses_its_old_content() -> None:
    pool = BlockPool(2, 16)
    cached(pool, text(1, 32))
    drain(pool)
    assert pool.lookup(text(1, 32)).size == 0
    assert pool.num_cached == 0


def test_k005_hits_are_not_evicted_for_the_same_request() -> None:
    pool = BlockPool(4, 16)
    head = cached(pool, text(1, 32))
    taken = pool.allocate(text(1, 32) + text(2, 32), 4)
    assert taken is not None
    assert taken[0].tolist()[:2] == head
    assert len(set(taken[0].tolist())) == 4


def test_k006_without_caching_nothing_is_shared() -> None:
    pool = BlockPool(8, 16, prefix_caching=False)
    taken = pool.allocate(text(1, 64), 4)
    assert taken is not None
    pool.register(taken[0], text(1, 64))
    again = pool.allocate(text(1, 64), 4)
    assert again is not None
    assert again[1] == 0
    assert pool.allocate(text(1, 64), 1) is None


def test_k007_only_full_blocks_in_chain_order() -> None:
    pool = BlockPool(8, 16)
    taken = pool.allocate(text(1, 40), 3)
    assert taken is not None
    assert pool.register(taken[0], text(1, 40)) == 2
    assert pool.register(taken[0], text(1, 40)) == 2
    assert pool.num_cached == 2
    assert pool.lookup(text(1, 40)).tolist() == taken[0].tolist()[:2]


def test_k010_reset_is_refused_while_a_block_is_owned() -> None:
    pool = BlockPool(8, 16)
    cached(pool, text(1, 64))
    taken = pool.allocate(text(1, 16), 1)
    assert taken is not None
    assert not pool.reset_prefix_cache()
    assert pool.lookup(text(1, 64)).size == 4
    pool.release(taken[0])
    assert pool.reset_prefix_cache()
    assert pool.lookup(text(1, 64)).size == 0


def test_k012_one_of_two_equal_blocks_may_go() -> None:
    pool = BlockPool(4, 16)
    both = [pool.allocate([], 1), pool.allocate([], 1)]
    for taken in both:
        assert taken is not None
        pool.register(taken[0], text(1, 16))
    first, second = (int(taken[0][0]) for taken in both if taken is not None)
    pool.release([first])
    pool.release([second])
    gone = [pool.allocate([], 1) for _ in range(3)]  # two never used, then the first duplicate
    assert gone[-1] is not None
    assert gone[-1][0].tolist() == [first]
    assert pool.lookup(text(1, 16)).tolist() == [second]


def test_k016_a_free_hit_counts_as_consumption() -> None:
    pool = BlockPool(4, 16)
    cached(pool, text(1, 16))
    held = pool.allocate([], 2)
    assert held is not None
    assert pool.num_free == 2
    assert pool.allocate(text(1, 16) + text(2, 32), 3) is None
    taken = pool.allocate(text(1, 16) + text(2, 16), 2)
    assert taken is not None
    assert (taken[1], pool.num_free) == (1, 0)


def test_k018_from_an_empty_pool_comes_a_plain_none() -> None:
    pool = BlockPool(3, 16, reserved_blocks=1)
    assert drain(pool) == [1, 2]
    assert pool.allocate([], 1) is None
    pool.release([2])
    assert drain(pool) == [2]
