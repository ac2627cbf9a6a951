//! Requests without a place, in the order in which they were handed in. One that comes back goes to where it was
//! before, so a loss or a refusal costs nobody their turn.

use crate::ids::RequestId;
use std::collections::BTreeMap;

/// A request's place among all ever handed in.
pub(super) type Order = u64;

#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<Order, RequestId>,
}

impl Queue {
    pub fn insert(&mut self, order: Order, request: RequestId) {
        self.waiting.insert(order, request);
    }

    pub fn remove(&mut self, order: Order) {
        self.waiting.remove(&order);
    }

    pub fn first(&self) -> Option<RequestId> {
        self.waiting.first_key_value().map(|(_, request)| *request)
    }

    pub fn get(&self, order: Order) -> Option<RequestId> {
        self.waiting.get(&order).copied()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
