//! The half of a hand-off that one scheduler decides: reservations, arrivals, release, and pins on blocks that a copy
//! may still touch. Positions here are token positions; where the bytes go is the worker's business.

use super::ending::verdict;
use super::queue::Slot;
use super::table::{Cold, Inbound, Phase, PinId};
use super::{Goal, ReserveError, Scheduler, SeededBug};
use crate::ids::RequestId;
use crate::kv::{BlockId, BlockPool, Namespace};
use crate::message::TokenRange;
use crate::request::Request;
use crate::time::Time;

/// Room made for a request whose prompt is computed elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Positions whose KV must travel; those before are in the cache here.
    pub missing: TokenRange,
    /// The blocks, from position 0; room for the first decoded token included.
    pub blocks: Vec<BlockId>,
}

/// What an arrival led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Something is still missing.
    Waiting,
    /// All is here: it will decode as soon as a row is free, or it ended with its first output.
    Complete,
    /// Not a reservation of this scheduler, or out of its range; counted, nothing changed.
    Unknown,
}

impl Cold {
    /// Makes blocks findable that are full of the first `computed` positions.
    pub(super) fn register(&mut self, computed: u32, block_size: u32, pool: &mut BlockPool) {
        while (self.registered + 1) * block_size <= computed {
            let (index, block_size) = (self.registered as usize, block_size as usize);
            let tokens = &self.tokens[index * block_size..][..block_size];
            self.node = pool.register(self.blocks[index], self.node, tokens);
            self.registered += 1;
        }
    }
}

impl Inbound {
    fn insert(&mut self, range: TokenRange) {
        let range = range.intersect(self.missing);
        if range.is_empty() {
            return;
        }
        let at = self.arrived.partition_point(|known| known.start <= range.start);
        self.arrived.insert(at, range);
        let mut merged = smallvec::SmallVec::<[TokenRange; 2]>::new();
        for &range in &self.arrived {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        self.arrived = merged;
    }

    /// Positions here without a gap, from 0.
    fn contiguous(&self) -> u32 {
        match self.arrived.first() {
            Some(first) if first.start == self.missing.start => first.end,
            _ => self.missing.start,
        }
    }
}

impl Scheduler {
    /// Makes room for a request whose prompt (all its known tokens) is computed elsewhere: all or nothing, reusing
    /// what the cache holds. Nothing of what must travel is findable before it has arrived.
    pub fn reserve(&mut self, request: Request, now: Time) -> Result<Reservation, ReserveError> {
        self.validate(&request)?;
        let block_size = self.config.block_size;
        let tokens = request.token_ids.len() as u32;
        // Room for the first decoded token is part of it (unless the first output is the last).
        let total = (tokens + 1).div_ceil(block_size).min(self.pool.num_usable());
        let mut hits = Vec::new();
        let namespace = Namespace(request.namespace);
        let node = self.pool.lookup(namespace, &request.token_ids, tokens / block_size, &mut hits);
        let revived = hits.iter().filter(|&&block| self.pool.ref_count(block) == 0).count() as u32;
        let num_hits = hits.len() as u32;
        // Whoever waits here has come before: what its head needs is not given away.
        let head = self.order.peek(now).map_or(0, |head| self.blocks_for(head));
        let watermark = head + if self.table.len() > 0 { self.config.watermark_blocks } else { 0 };
        let (needed, free) = (total - num_hits + revived, self.pool.num_free());
        let mut blocks = Vec::with_capacity(total as usize);
        if needed + watermark > free || self.pool.take(&hits, total - num_hits, &mut blocks).is_err() {
            return Err(ReserveError::NoSpace { needed: needed + watermark, free });
        }
        let missing = TokenRange { start: num_hits * block_size, end: tokens };
        let inbound = Inbound { missing, ..Inbound::default() };
        let slot = self.insert(request, Phase::Reserved(inbound), Goal::Finish, now);
        let cold = self.table.get_mut(slot);
        cold.blocks.clone_from(&blocks);
        (cold.registered, cold.node) = (num_hits, node);
        cold.timing.num_cached_tokens = missing.start;
        self.stats.prefix_queries += u64::from(tokens);
        self.stats.prefix_hits += u64::from(missing.start);
        Ok(Reservation { missing, blocks })
    }

    /// KV of these positions is written. Repeated and overlapping ranges are harmless.
    pub fn arrived(&mut self, id: RequestId, range: TokenRange, now: Time) -> Arrival {
        let Some(slot) = self.reserved(id) else {
            return Arrival::Unknown;
        };
        let block_size = self.config.block_size;
        let cold = self.table.get_mut(slot);
        let Phase::Reserved(inbound) = &mut cold.phase else {
            return Arrival::Unknown;
        };
        inbound.insert(range);
        if self.config.seeded_bug == Some(SeededBug::EarlyArrival) {
            inbound.insert(inbound.missing);
        }
        let contiguous = inbound.contiguous();
        cold.register(contiguous, block_size, &mut self.pool);
        self.settle(slot, now)
    }

    /// The hand-off: the first output, sampled where the prompt was computed.
    pub fn hand_over(&mut self, id: RequestId, token: u32, now: Time) -> Arrival {
        let Some(slot) = self.reserved(id) else {
            return Arrival::Unknown;
        };
        if let Phase::Reserved(inbound) = &mut self.table.get_mut(slot).phase {
            inbound.first_token = Some(token);
        }
        self.settle(slot, now)
    }

    fn reserved(&mut self, id: RequestId) -> Option<Slot> {
        let slot = self.table.find(id).filter(|&slot| matches!(self.table.get(slot).phase, Phase::Reserved(_)));
        self.stats.unknown_requests += u64::from(slot.is_none());
        slot
    }

    /// With all KV and the first output here, the request is ready to decode.
    fn settle(&mut self, slot: Slot, now: Time) -> Arrival {
        let cold = self.table.get_mut(slot);
        let Phase::Reserved(inbound) = &cold.phase else {
            return Arrival::Unknown;
        };
        let (Some(token), true) = (inbound.first_token, inbound.contiguous() >= inbound.missing.end) else {
            return Arrival::Waiting;
        };
        cold.tokens.push(token);
        cold.timing.first_token = Some(now);
        cold.phase = Phase::Ready;
        self.ready.push_back(slot);
        if let Some(reason) = verdict(&self.config, self.table.get(slot)) {
            self.remove(slot, Some(reason), now);
        }
        Arrival::Complete
    }

    /// Hand-offs that were admitted with a cached prefix since the last completion, and its length in tokens: sendable
    /// at once. Whoever does not ask finds them in the next [`Outputs::progress`](super::Outputs::progress).
    pub fn take_cached(&mut self) -> Vec<(RequestId, u32)> {
        std::mem::take(&mut self.cached)
    }

    /// The KV of a hand-off is where it belongs: its blocks go back (behind their pins).
    pub fn release(&mut self, id: RequestId, now: Time) -> bool {
        let slot = self.table.find(id).filter(|&slot| self.table.get(slot).phase == Phase::Held);
        self.stats.unknown_requests += u64::from(slot.is_none());
        let Some(slot) = slot else { return false };
        self.remove(slot, None, now);
        true
    }

    /// A copy begins that reads or writes this request's blocks: whatever happens to the request, they are not handed
    /// out before [`unpin`](Self::unpin). The number is the caller's, unique among pins in force.
    pub fn pin(&mut self, id: RequestId, pin: PinId) -> bool {
        let slot = self.table.find(id);
        self.stats.unknown_requests += u64::from(slot.is_none());
        let Some(slot) = slot else { return false };
        self.table.get_mut(slot).pins.push(pin);
        true
    }

    /// The copy behind a pin of a request that has ended will never be proven over: its blocks are lost for good.
    /// Returns their number.
    pub fn retire(&mut self, pin: PinId) -> u32 {
        self.fences.retire(pin)
    }

    /// The copy is over, proven.
    pub fn unpin(&mut self, id: RequestId, pin: PinId) -> bool {
        if let Some(slot) = self.table.find(id) {
            let pins = &mut self.table.get_mut(slot).pins;
            if let Some(at) = pins.iter().position(|&p| p == pin) {
                pins.swap_remove(at);
                return true;
            }
        }
        self.fences.lift_pin(pin, self.flight.completed, &mut self.pool)
    }
}
