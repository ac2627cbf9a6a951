//! Integrity: what must be true between any two calls. Run after every event in tests.

use super::table::{Cold, Phase};
use super::{Scheduler, queue::Slot};
use crate::ids::Row;
use std::collections::BTreeSet;

impl Scheduler {
    /// Verifies the scheduler and its pool; the text says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        let owned = self.table.iter().flat_map(|(_, cold)| cold.blocks.iter().copied());
        self.pool.check_owners(owned.chain(self.fences.blocks()))?;
        self.check_places()?;
        self.check_rows()?;
        for (slot, cold) in self.table.iter() {
            self.check_request(slot, cold).map_err(|text| format!("request {}: {text}", cold.request.id))?;
        }
        self.check_flight()
    }

    /// Every request is in exactly the place its phase says.
    fn check_places(&self) -> Result<(), String> {
        let of = |wanted: fn(&Phase) -> bool| -> BTreeSet<Slot> {
            self.table.iter().filter(|(_, cold)| wanted(&cold.phase)).map(|(slot, _)| slot).collect()
        };
        let queue = self.order.slots();
        let ready: BTreeSet<Slot> = self.ready.iter().copied().collect();
        let waiting = of(|phase| matches!(phase, Phase::Waiting));
        ensure(queue.len() == waiting.len() && queue.iter().copied().collect::<BTreeSet<_>>() == waiting, || {
            format!("queue holds {queue:?}, waiting are {waiting:?}")
        })?;
        ensure(ready.len() == self.ready.len(), || format!("a request is ready twice: {:?}", self.ready))?;
        let expected = of(|phase| matches!(phase, Phase::Ready));
        ensure(ready == expected, || format!("ready list {ready:?}, phases say {expected:?}"))
    }

    fn check_rows(&self) -> Result<(), String> {
        let mut taken = BTreeSet::new();
        for (slot, cold) in self.table.iter() {
            if let Phase::Running(row) = cold.phase {
                ensure(taken.insert(row), || format!("row {row} is taken twice"))?;
                ensure(self.rows.get(row).slot == slot, || format!("row {row} belongs to another slot"))?;
                let prefilling = self.prefilling.iter().filter(|&&r| r == row).count();
                let places = prefilling + usize::from(self.rows.is_decoding(row));
                ensure(places == 1, || format!("row {row} is in {places} of the running sets"))?;
            }
        }
        ensure(taken.len() == self.rows.in_use() as usize, || {
            format!("{} rows counted, {taken:?}", self.rows.in_use())
        })?;
        let running = self.rows.num_decoding() as usize + self.prefilling.len();
        ensure(running == taken.len(), || format!("{running} rows in the running sets, {} taken", taken.len()))?;
        let vacant: Vec<Row> = self.rows.vacant().collect();
        let all: BTreeSet<Row> = vacant.iter().copied().chain(taken.iter().copied()).collect();
        ensure(all.len() == self.rows.len() && vacant.len() + taken.len() == self.rows.len(), || {
            format!("rows lost or doubled: {} taken, {} vacant of {}", taken.len(), vacant.len(), self.rows.len())
        })
    }

    fn check_request(&self, slot: Slot, cold: &Cold) -> Result<(), String> {
        let block_size = self.config.block_size;
        let len = cold.tokens.len() as u32;
        ensure(self.table.find(cold.request.id) == Some(slot), || "not found under its id".into())?;
        ensure(cold.registered as usize <= cold.blocks.len(), || "more blocks findable than owned".into())?;
        match &cold.phase {
            Phase::Waiting => ensure(cold.blocks.is_empty() && cold.pins.is_empty(), || "waits with blocks".into()),
            Phase::Ready => ensure(cold.blocks.len() as u32 * block_size >= len, || "ready without room".into()),
            Phase::Reserved(inbound) => ensure(inbound.missing.end == len, || format!("awaits {inbound:?}, has {len}")),
            Phase::Held => {
                ensure(cold.num_outputs() == cold.request.num_known_outputs() + 1, || "held without output".into())
            }
            Phase::Running(row) => self.check_hot(*row, cold),
        }
    }

    fn check_hot(&self, row: Row, cold: &Cold) -> Result<(), String> {
        let hot = self.rows.get(row);
        let room = cold.blocks.len() as u32 * self.config.block_size;
        ensure(hot.known as usize == cold.tokens.len(), || {
            format!("row knows {} tokens of {}", hot.known, cold.tokens.len())
        })?;
        ensure(hot.last_token == cold.tokens[cold.tokens.len() - 1], || "row has another last token".into())?;
        ensure(hot.room <= room && hot.room.is_multiple_of(self.config.block_size), || {
            format!("room {} for {room} positions", hot.room)
        })?;
        if self.rows.is_decoding(row) && hot.pending == 0 {
            ensure(hot.planned + self.config.block_size >= hot.room && hot.planned <= hot.room, || {
                format!("next position {} outside the open block that ends at {}", hot.planned, hot.room)
            })?;
        }
        ensure(hot.planned <= room, || format!("{} positions planned in room for {room}", hot.planned))?;
        ensure(hot.num_tokens() <= hot.limit, || format!("{} tokens, limit {}", hot.num_tokens(), hot.limit))?;
        ensure(hot.planned < hot.num_tokens(), || format!("{} planned of {}", hot.planned, hot.num_tokens()))?;
        ensure(
            hot.slot_delta == {
                let column = i64::from(hot.room / self.config.block_size) - 1;
                (i64::from(cold.blocks[column as usize].0) - column) * i64::from(self.config.block_size)
            },
            || "slot_delta".into(),
        )?;
        let unfinished = self.flight.plans().flat_map(|plan| &plan.entries);
        let pending = unfinished.filter(|entry| entry.row == row && entry.run == hot.run);
        let pending = pending.filter(|entry| entry.samples()).count() as u32;
        ensure(pending == hot.pending, || format!("{} outputs pending, {pending} in flight", hot.pending))
    }

    fn check_flight(&self) -> Result<(), String> {
        let ids: Vec<u64> = self.flight.plans().map(|plan| plan.id.0).collect();
        let expected: Vec<u64> = (self.flight.completed.0 + 1..=self.flight.planned.0).collect();
        ensure(ids == expected, || format!("steps in flight {ids:?}, expected {expected:?}"))?;
        for plan in self.flight.plans() {
            let tokens: u32 = plan.entries.iter().map(super::Entry::len).sum();
            ensure(tokens == plan.num_tokens && tokens <= self.config.max_num_batched_tokens, || {
                format!("step {} plans {tokens} tokens, counts {}", plan.id, plan.num_tokens)
            })?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}
