//! Blocks for requests that run: one more at a block boundary, and who gives way when there is none.

use super::flight::{Displaced, StepPlan, TableWrite};
use super::queue::{Slot, Ticket};
use super::table::Phase;
use super::{Scheduler, SeededBug};
use crate::ids::Row;
use crate::kv::{Namespace, NodeRef};
use crate::request::FinishReason;
use crate::time::Time;

impl Scheduler {
    /// Gives a row its next block, if there is one.
    pub(super) fn grow(&mut self, row: Row, plan: &mut StepPlan) -> bool {
        let block_size = self.config.block_size;
        let hot = self.rows.get_mut(row);
        let cold = self.table.get_mut(hot.slot);
        let column = hot.room / block_size;
        if let Some(&block) = cold.blocks.get(column as usize) {
            hot.open_block(column, block, block_size); // taken by a step that failed
            return true;
        }
        let Some(block) = self.pool.allocate() else { return false };
        cold.blocks.push(block);
        hot.open_block(column, block, block_size);
        plan.table_diff.push(TableWrite { row, column, block });
        true
    }

    /// Sees to it that decoding rows at a block boundary find a block: preempts as few as it takes, and lets the
    /// earliest grow first. Costs nothing while more blocks are free than rows decode.
    pub(super) fn make_room(&mut self, plan: &mut StepPlan, now: Time) {
        if self.pool.num_free() >= self.rows.num_decoding() {
            return;
        }
        let mut needy = self.needy_rows();
        while needy.len() as u32 > self.pool.num_free() {
            // Blocks that come back with a step in flight are as good as free: those in need wait that step.
            if needy.len() as u32 <= self.pool.num_free() + self.fences.credit(&self.pool) {
                break;
            }
            let candidates = self.candidates();
            if candidates.len() <= 1 {
                self.end_if_alone(&candidates, now);
                needy = self.needy_rows();
                break;
            }
            let Some(victim) = self.order.victim(&candidates) else {
                break;
            };
            self.preempt(victim.slot);
            needy = self.needy_rows();
        }
        needy.sort_by_key(|&row| self.table.get(self.rows.get(row).slot).arrival);
        for row in needy {
            if !self.grow(row, plan) {
                break;
            }
        }
    }

    /// Decoding rows whose next position has no block.
    fn needy_rows(&self) -> Vec<Row> {
        let needs_block = |row: &Row| {
            let hot = self.rows.get(*row);
            let at_boundary = hot.wants_step() && hot.planned == hot.room;
            at_boundary && hot.room == self.table.get(hot.slot).blocks.len() as u32 * self.config.block_size
        };
        self.rows.decoding().filter(needs_block).collect()
    }

    /// Requests that could give their blocks back: running ones, and those that wait for a row.
    fn candidates(&self) -> Vec<Ticket> {
        let running = self.rows.decoding().chain(self.prefilling.iter().copied()).map(|row| self.rows.get(row).slot);
        running.chain(self.ready.iter().copied()).map(|slot| self.table.get(slot).ticket(slot)).collect()
    }

    /// The only one left that runs cannot grow. If every block in use is its own, it never will.
    fn end_if_alone(&mut self, candidates: &[Ticket], now: Time) {
        let Some(&Ticket { slot, .. }) = candidates.first() else {
            return;
        };
        let cold = self.table.get(slot);
        let Phase::Running(row) = cold.phase else { return };
        let alone = self.pool.num_used() as usize == cold.blocks.len();
        if alone && self.rows.get(row).pending == 0 {
            self.remove(slot, Some(FinishReason::Capacity), now);
        }
    }

    /// A request gives its blocks back and returns to the queue with the arrival it had. Its tokens stay, also those
    /// that steps in flight will still bring; blocks it had completed stay findable until they are handed out.
    pub(super) fn preempt(&mut self, slot: Slot) {
        self.leave_row(slot);
        self.ready.retain(|&ready| ready != slot);
        self.free_blocks(slot);
        self.stats.preemptions += 1;
        let cold = self.table.get_mut(slot);
        cold.phase = Phase::Waiting;
        cold.timing.preemptions += 1;
        self.preempted.push(cold.request.id);
        let ticket = cold.ticket(slot);
        self.order.push(ticket);
    }

    /// Takes a request out of its row, if it has one. The row stays taken until its newest step is done.
    pub(super) fn leave_row(&mut self, slot: Slot) {
        let Phase::Running(row) = self.table.get(slot).phase else {
            return;
        };
        let completed = self.flight.completed;
        let passed = if self.has_bug(SeededBug::EarlyRowReuse) { self.flight.planned } else { completed };
        let hot = self.rows.close(row, passed);
        self.prefilling.retain(|&prefilling| prefilling != row);
        self.closed.push(row);
        let cold = self.table.get_mut(slot);
        (cold.pending, cold.newest) = (hot.pending, hot.newest);
        if hot.newest > completed {
            self.flight.displaced.push(Displaced { row, run: hot.run, slot, newest: hot.newest });
        }
    }

    /// A request's blocks go back, behind the newest step that names them and the pins on them.
    pub(super) fn free_blocks(&mut self, slot: Slot) {
        let cold = self.table.get_mut(slot);
        // Nothing can be sent from blocks that are gone.
        self.cached.retain(|&(id, _)| id != cold.request.id);
        let (blocks, mut pins) = (std::mem::take(&mut cold.blocks), std::mem::take(&mut cold.pins));
        if self.config.seeded_bug == Some(SeededBug::FreeDuringCopy) && matches!(cold.phase, Phase::Reserved(_)) {
            pins.clear();
        }
        cold.registered = 0;
        cold.node = NodeRef::root(Namespace(cold.request.namespace));
        self.fences.push(blocks, cold.newest, pins, self.flight.completed, &mut self.pool);
    }
}
