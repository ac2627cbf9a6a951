//! A request's part on this worker. The scheduler knows it by a local id, so that a second attempt can come while the
//! first is still fenced; the world knows it by its attempt.

use super::outbound::Key;
use crate::ids::{Attempt, RequestId, TransferId};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// What this worker does for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Generates (a whole request, or one whose KV arrived).
    Run,
    /// Waits for its KV.
    Inbound(TransferId),
    /// Computes its prompt and ships the KV.
    Outbound(Key),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Leg {
    pub attempt: Attempt,
    pub part: Part,
    /// Index of the next output, counted from the request's first.
    pub next_index: u32,
}

#[derive(Debug, Default)]
pub(super) struct Legs {
    by_local: FxHashMap<RequestId, Leg>,
    by_attempt: BTreeMap<Attempt, RequestId>,
    last_local: u64,
}

impl Legs {
    /// The local id that the next [`insert`](Self::insert) uses.
    pub fn next_local(&self) -> RequestId {
        RequestId(self.last_local + 1)
    }

    pub fn insert(&mut self, leg: Leg) -> RequestId {
        self.last_local += 1;
        let local = RequestId(self.last_local);
        self.by_attempt.insert(leg.attempt, local);
        self.by_local.insert(local, leg);
        local
    }

    pub fn get_mut(&mut self, local: RequestId) -> Option<&mut Leg> {
        self.by_local.get_mut(&local)
    }

    pub fn get(&self, local: RequestId) -> Option<Leg> {
        self.by_local.get(&local).copied()
    }

    pub fn find(&self, attempt: Attempt) -> Option<(RequestId, Leg)> {
        let local = *self.by_attempt.get(&attempt)?;
        Some((local, self.by_local[&local]))
    }

    /// Some attempt of a request that is here.
    pub fn of_request(&self, request: RequestId) -> Option<Attempt> {
        let (first, last) = (Attempt { request, number: 0 }, Attempt { request, number: u32::MAX });
        self.by_attempt.range(first..=last).next().map(|(&attempt, _)| attempt)
    }

    pub fn remove(&mut self, local: RequestId) -> Option<Leg> {
        let leg = self.by_local.remove(&local)?;
        self.by_attempt.remove(&leg.attempt);
        Some(leg)
    }

    pub fn attempts(&self) -> Vec<Attempt> {
        self.by_attempt.keys().copied().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.by_local.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_local.len()
    }
}
