//! Decode placement: the worker whose KV would be least full, as a share of its own capacity, with the request on it.
//!
//! Never by the number of requests or connections: one request of 10,000 tokens weighs as much as a hundred of 100.

use super::WorkerLoad;
use crate::ids::WorkerId;
use std::cmp::Ordering;

/// The worker with the lowest occupancy after taking `tokens` more (what the request holds plus how much it is
/// expected to grow). Ties go to the worker with the fewest placements, then to the lowest id.
pub fn choose<'a>(candidates: impl Iterator<Item = &'a WorkerLoad>, tokens: u64) -> Option<WorkerId> {
    candidates.min_by(|a, b| compare(a, b, tokens)).map(|load| load.worker)
}

/// Occupancies are compared as exact fractions, so that the choice does not hang on how a division rounds.
fn compare(a: &WorkerLoad, b: &WorkerLoad, tokens: u64) -> Ordering {
    let after = |load: &WorkerLoad| u128::from(load.occupied()) + u128::from(tokens);
    (after(a) * u128::from(b.capacity))
        .cmp(&(after(b) * u128::from(a.capacity)))
        .then(a.placements.cmp(&b.placements))
        .then(a.worker.cmp(&b.worker))
}
