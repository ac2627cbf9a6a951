//! The cold part of every unfinished request, by number and by place.

use super::queue::{Slot, Ticket};
use crate::ids::{RequestId, Row, StepId};
use crate::kv::{BlockId, NodeRef};
use crate::message::TokenRange;
use crate::request::Request;
use crate::time::Time;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A hold on a request's blocks by a copy that may still read or write them. Issued by the caller.
pub type PinId = u64;

/// Where a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// In the queue; holds no block.
    Waiting,
    /// Decode side: holds blocks, its KV is on the way.
    Reserved(Inbound),
    /// Decode side: its KV is here, it waits for a row.
    Ready,
    /// Has a row.
    Running(Row),
    /// Prefill side: done, keeps its blocks until they are released.
    Held,
}

/// What has arrived of a reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inbound {
    /// Positions that travel.
    pub missing: TokenRange,
    /// What came so far: disjoint, not touching, in order.
    pub arrived: SmallVec<[TokenRange; 2]>,
    /// The first output, once the hand-off brought it.
    pub first_token: Option<u32>,
}

/// Moments in the life of a request, in the scheduler's clock; `None` where it has not come to that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Handed in.
    pub arrived: Time,
    /// First planned.
    pub scheduled: Option<Time>,
    /// First output complete.
    pub first_token: Option<Time>,
    /// Ended.
    pub finished: Time,
    /// Times it gave its blocks back.
    pub preemptions: u32,
    /// Prompt tokens found in the cache when it first ran.
    pub num_cached_tokens: u32,
}

/// Everything about a request that a steady decode step does not touch.
#[derive(Debug)]
pub(super) struct Cold {
    pub request: Request,
    pub arrival: u64,
    pub phase: Phase,
    /// Prompt and confirmed outputs.
    pub tokens: Vec<u32>,
    pub blocks: Vec<BlockId>,
    /// Leading blocks that are findable, and the node they end at.
    pub registered: u32,
    pub node: NodeRef,
    /// Outputs in flight and newest step, while it has no row; with one, the row knows.
    pub pending: u32,
    pub newest: StepId,
    pub pins: SmallVec<[PinId; 1]>,
    pub hand_off: bool,
    pub timing: Timing,
}

impl Cold {
    pub fn ticket(&self, slot: Slot) -> Ticket {
        Ticket { slot, arrival: self.arrival, num_tokens: self.tokens.len() as u32 }
    }

    pub fn num_outputs(&self) -> u32 {
        self.tokens.len() as u32 - self.request.prompt_len
    }
}

/// The table.
#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Option<Cold>>,
    free: Vec<Slot>,
    by_id: FxHashMap<RequestId, Slot>,
}

impl Table {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn find(&self, id: RequestId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    pub fn insert(&mut self, cold: Cold) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as Slot - 1
        });
        self.by_id.insert(cold.request.id, slot);
        self.slots[slot as usize] = Some(cold);
        slot
    }

    pub fn remove(&mut self, slot: Slot) -> Cold {
        let cold = self.slots[slot as usize].take().expect("slot is taken");
        self.by_id.remove(&cold.request.id);
        self.free.push(slot);
        cold
    }

    #[inline]
    pub fn get(&self, slot: Slot) -> &Cold {
        self.slots[slot as usize].as_ref().expect("slot is taken")
    }

    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> &mut Cold {
        self.slots[slot as usize].as_mut().expect("slot is taken")
    }

    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Cold)> {
        self.slots.iter().enumerate().filter_map(|(slot, cold)| Some((slot as Slot, cold.as_ref()?)))
    }
}
