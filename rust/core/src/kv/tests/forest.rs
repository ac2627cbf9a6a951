//! Nodes: their lives, their ids and their index.

use crate::kv::Namespace;
use crate::kv::forest::{Forest, Node, NodeRef};
use crate::kv::ring::NIL;

fn root() -> NodeRef {
    NodeRef::root(Namespace(7))
}

/// A chain of `len` nodes of one token each under the root; returns the slots.
fn chain(forest: &mut Forest, len: u32) -> Vec<u32> {
    let mut at = root();
    let mut slots = Vec::new();
    for token in 0..len {
        let slot = forest.intern(at, &[token], u64::from(token)).unwrap();
        at = forest.node_ref(slot);
        slots.push(slot);
    }
    slots
}

fn num_alive(forest: &Forest) -> usize {
    forest.nodes.iter().filter(|node| node.is_alive()).count()
}

#[test]
fn a_node_is_half_a_cache_line() {
    assert_eq!((size_of::<Node>(), size_of::<NodeRef>()), (32, 16));
}

#[test]
fn a_chain_dies_from_its_end_to_the_root_however_long_it_is() {
    let mut forest = Forest::new(1, 4);
    let slots = chain(&mut forest, 100_000);
    let last = *slots.last().unwrap();
    forest.nodes[last as usize].block = 0;
    forest.prune(slots[0]);
    assert_eq!(num_alive(&forest), 100_001);
    forest.nodes[last as usize].block = NIL;
    forest.prune(last);
    assert_eq!((num_alive(&forest), forest.find_root(Namespace(7))), (0, None));
    assert!(forest.buckets.iter().all(|&slot| slot == NIL));
}

#[test]
fn finds_everything_while_it_outgrows_what_was_expected() {
    let mut forest = Forest::new(1, 1);
    let slots = chain(&mut forest, 1000);
    let mut parent = forest.find_root(Namespace(7)).unwrap();
    for (token, slot) in (0..).zip(slots) {
        assert_eq!(forest.find(parent, &[token], u64::from(token)), Some(slot));
        parent = slot;
    }
}

#[test]
fn no_id_is_used_twice_even_when_a_slot_is_spent() {
    let mut forest = Forest::new(1, 4);
    let slot = chain(&mut forest, 1)[0];
    let first = forest.node_ref(slot);
    forest.prune(slot);
    assert_eq!(forest.intern(first, &[5], 5), None, "a dead parent");

    // The slot's last possible generation.
    let slot = chain(&mut forest, 1)[0];
    assert_ne!(forest.node_ref(slot), first);
    forest.nodes[slot as usize].generation = u32::MAX;
    let last = forest.node_ref(slot);
    forest.prune(slot);
    assert!(!forest.empty_slots.contains(&slot));
    assert_eq!(forest.intern(last, &[5], 5), None, "a dead parent in a spent slot");
    assert_eq!(forest.intern(NodeRef::detached(5), &[5], 5), None, "a detached parent");
}

#[test]
fn a_root_is_told_from_a_node_of_the_same_hash() {
    let mut forest = Forest::new(1, 4);
    let node = forest.intern(root(), &[1], root().hash()).unwrap();
    let found = forest.find_root(Namespace(7)).unwrap();
    assert_ne!(found, node);
    assert_eq!(forest.find(found, &[1], root().hash()), Some(node));
}

#[test]
fn namespaces_are_scrambled_without_loss() {
    let hashes: std::collections::BTreeSet<u64> = (0..1000).map(|ns| NodeRef::root(Namespace(ns)).hash()).collect();
    assert_eq!(hashes.len(), 1000);
}
