//! The cluster against random events: clients come and go, workers answer, refuse, repeat themselves, lose messages,
//! lose their memory, freeze, die and come back. Whatever happens: every request ends exactly once, its outputs are
//! 0, 1, 2, … without a gap or a repeat and are the right ones, `check` holds after every event, the books are zero at
//! the end, and the recorded events replay to the same actions.

#[path = "cluster_random/fake_worker.rs"]
mod fake_worker;
#[path = "cluster_random/op.rs"]
mod op;
#[path = "cluster_random/world.rs"]
mod world;

use op::op;
use pdsched_core::message::Role;
use pdsched_core::request::FinishReason;
use proptest::prelude::*;
use std::collections::BTreeMap;
use world::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_once_and_the_books_close(
        both in 0..3usize, split in 0..3usize, ops in prop::collection::vec(op(4), 1..250)
    ) {
        let mut roles = vec![Role::Both; both];
        roles.extend([Role::Prefill, Role::Decode].repeat(split));
        roles.truncate(4);
        roles.resize(4, Role::Both);
        let mut world = World::new(&roles);
        ops.iter().for_each(|op| world.apply(op));
        world.settle();
        prop_assert_eq!(world.finished.len(), world.requests.len());
        for load in world.cluster.loads() {
            prop_assert_eq!((load.booked, load.expected_growth, load.queued_prefill, load.placements), (0, 0, 0, 0));
        }
        world.replay();
    }
}

/// The property above is worth something only if the random worlds go where it hurts.
#[test]
fn the_random_worlds_are_eventful() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, TestRunner};
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let strategy = prop::collection::vec(op(4), 200);
    let mut seen = BTreeMap::<&str, u64>::new();
    for round in 0..40 {
        let roles = if round % 2 == 0 {
            [Role::Prefill, Role::Decode, Role::Prefill, Role::Decode]
        } else {
            [Role::Prefill, Role::Decode, Role::Both, Role::Both]
        };
        let mut world = World::new(&roles);
        strategy.new_tree(&mut runner).unwrap().current().iter().for_each(|op| world.apply(op));
        world.settle();
        let stats = world.cluster.stats();
        let finished = |reason| world.finished.values().filter(|found| **found == reason).count() as u64;
        for (name, count) in [
            ("length", finished(FinishReason::Length)),
            ("abort", finished(FinishReason::Abort)),
            ("failed attempts", stats.failed_attempts),
            ("refusals", stats.refusals),
            ("lost workers", stats.workers_lost),
            ("restarts", stats.worker_restarts),
            ("stale", stats.stale_attempts),
            ("duplicate tokens", stats.duplicate_tokens),
            ("duplicate messages", stats.duplicate_messages),
            ("lost messages", stats.lost_messages),
            ("dead incarnations", stats.dead_incarnation),
        ] {
            *seen.entry(name).or_default() += count;
        }
    }
    assert!(seen.values().all(|count| *count > 0), "{seen:?}");
    println!("{seen:?}");
}
