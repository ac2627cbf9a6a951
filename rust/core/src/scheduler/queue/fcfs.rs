//! First come, first served. A preempted request keeps its place; the latest arrival gives way first.

use super::{QueueOrder, Slot, Ticket};
use crate::time::Time;
use std::collections::BTreeMap;

/// Waiting requests by arrival.
#[derive(Debug, Default)]
pub struct Fcfs {
    by_arrival: BTreeMap<u64, Slot>,
}

impl QueueOrder for Fcfs {
    fn push(&mut self, ticket: Ticket) {
        self.by_arrival.insert(ticket.arrival, ticket.slot);
    }

    fn peek(&mut self, _now: Time) -> Option<Slot> {
        self.by_arrival.first_key_value().map(|(_, &slot)| slot)
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        self.by_arrival.remove(&ticket.arrival).is_some()
    }

    fn len(&self) -> usize {
        self.by_arrival.len()
    }

    fn victim(&self, candidates: &[Ticket]) -> Option<Ticket> {
        candidates.iter().copied().max_by_key(|ticket| ticket.arrival)
    }

    fn slots(&self) -> Vec<Slot> {
        self.by_arrival.values().copied().collect()
    }
}
