//! What the end of a step changes: tokens become known, blocks findable, fences pass.
//!
//! Steps are done in order. A completion that comes early is kept and counts when the older ones are done.

use super::flight::{Entry, Outcome, StepPlan};
use super::rows::HAND_OFF;
use super::{CompleteError, Finished, Scheduler, SeededBug};
use crate::ids::{RequestId, Row, StepId};
use crate::time::Time;

/// What a completion brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// One entry per output: whose it is …
    pub request_ids: Vec<u64>,
    /// … and the token.
    pub token_ids: Vec<i64>,
    /// Hand-offs that moved: positions computed so far, sendable from here.
    pub progress: Vec<(RequestId, u32)>,
    /// Hand-offs that got their output: all is computed, the blocks stay until [`Scheduler::release`].
    pub held: Vec<RequestId>,
    /// Requests that ended since the last time this was told.
    pub finished: Vec<Finished>,
}

impl Outputs {
    #[inline]
    pub(super) fn push_token(&mut self, id: RequestId, token: u32) {
        self.request_ids.push(id.0);
        self.token_ids.push(i64::from(token));
    }
}

impl Scheduler {
    /// A step ran: `tokens` has one entry per sampling entry of its plan, in order.
    ///
    /// A step that is not in flight gives empty outputs and is counted.
    ///
    /// # Errors
    /// [`CompleteError`], with nothing changed, for a wrong number of tokens, a value that is no token id, or a step
    /// that was completed already and waits for an older one.
    pub fn complete(&mut self, step: StepId, tokens: &[i64], now: Time) -> Result<Outputs, CompleteError> {
        let Some((plan, outcome)) = self.flight.get(step) else {
            self.stats.late_steps += 1;
            return Ok(Outputs::default());
        };
        if !matches!(outcome, Outcome::Pending) {
            return Err(CompleteError::Twice(step));
        }
        let expected = plan.num_samples as usize;
        if tokens.len() != expected {
            return Err(CompleteError::NumTokens { step, expected, got: tokens.len() });
        }
        if let Some(index) = tokens.iter().position(|&token| u32::try_from(token).is_err()) {
            return Err(CompleteError::Token { step, index, token: tokens[index] });
        }
        let mut out = Outputs::default();
        if self.flight.is_oldest(step) {
            out.request_ids.reserve(expected);
            out.token_ids.reserve(expected);
            let plan = self.flight.pop().expect("the step is the oldest");
            self.apply(&plan, tokens, now, &mut out);
            self.flight.recycle(plan);
            self.apply_kept(now, &mut out);
        } else {
            self.flight.set_outcome(step, Outcome::Completed(tokens.to_vec()));
        }
        out.finished = self.take_finished();
        Ok(out)
    }

    /// A step did not run to its end, and nothing of it runs any more. What was confirmed before stays; what it would
    /// have computed is planned again; entries of the same requests in later steps do not count.
    ///
    /// # Errors
    /// [`CompleteError::Twice`] for a step that was completed already and waits for an older one.
    pub fn fail(&mut self, step: StepId, now: Time) -> Result<Outputs, CompleteError> {
        let Some((_, outcome)) = self.flight.get(step) else {
            self.stats.late_steps += 1;
            return Ok(Outputs::default());
        };
        if !matches!(outcome, Outcome::Pending) {
            return Err(CompleteError::Twice(step));
        }
        self.flight.set_outcome(step, Outcome::Failed);
        let mut out = Outputs::default();
        self.apply_kept(now, &mut out);
        out.finished = self.take_finished();
        Ok(out)
    }

    /// Steps whose end was kept because an older one was not done.
    fn apply_kept(&mut self, now: Time, out: &mut Outputs) {
        while let Some((plan, outcome)) = self.flight.pop_done() {
            match outcome {
                Outcome::Completed(tokens) => self.apply(&plan, &tokens, now, out),
                Outcome::Failed => self.undo(&plan),
                Outcome::Pending => unreachable!("a pending step is not done"),
            }
            self.flight.recycle(plan);
        }
    }

    fn apply(&mut self, plan: &StepPlan, tokens: &[i64], now: Time, out: &mut Outputs) {
        self.flight.completed = plan.id;
        out.progress.append(&mut self.cached);
        let mut tokens = tokens.iter().map(|&token| token as u32);
        for entry in &plan.entries {
            let token = if entry.samples() { tokens.next() } else { None };
            let hot = self.rows.get(entry.row);
            if hot.run != entry.run {
                self.apply_displaced(entry, token, now, out);
                continue;
            }
            let (id, flags, next_full) = (hot.id, hot.flags, hot.next_full);
            if entry.end() >= next_full {
                self.register_full(entry.row, entry.end());
            }
            if flags & HAND_OFF != 0 {
                out.progress.push((id, entry.end()));
            }
            if let Some(token) = token {
                self.accept(entry.row, token, now, out);
            }
        }
        self.pass_fences();
    }

    /// The entry's request is no longer in its row: preempted (its token counts), ended or failed (it does not).
    fn apply_displaced(&mut self, entry: &Entry, token: Option<u32>, now: Time, out: &mut Outputs) {
        let Some(token) = token else { return };
        match self.flight.find_displaced(entry) {
            Some(slot) => self.accept_displaced(slot, token, now, out),
            None => self.stats.dropped_tokens += 1,
        }
    }

    /// Blocks full of confirmed positions become findable.
    pub(super) fn register_full(&mut self, row: Row, computed: u32) {
        let block_size = self.config.block_size;
        let hot = self.rows.get_mut(row);
        let cold = self.table.get_mut(hot.slot);
        cold.register(computed, block_size, &mut self.pool);
        hot.next_full = (cold.registered + 1) * block_size;
    }

    /// A failed step: its requests go back to where they stood when it was planned.
    fn undo(&mut self, plan: &StepPlan) {
        self.flight.completed = plan.id;
        for entry in &plan.entries {
            let hot = *self.rows.get(entry.row);
            if hot.run == entry.run {
                self.rewind(entry);
            } else if let Some(slot) = self.flight.find_displaced(entry) {
                self.table.get_mut(slot).pending = 0;
                self.flight.forget_displaced(slot);
            }
        }
        self.pass_fences();
    }

    /// Everything from the entry's start on is to be planned again. Later steps that name the row are void, which a
    /// new run number says; their fences stay.
    fn rewind(&mut self, entry: &Entry) {
        let hot = self.rows.get_mut(entry.row);
        self.stats.dropped_tokens += u64::from(entry.samples());
        if self.config.seeded_bug != Some(SeededBug::ForgottenFailure) || entry.samples() {
            hot.planned = entry.start;
        }
        hot.pending = 0;
        hot.run = hot.run.wrapping_add(1);
        // Steps behind this one may have taken blocks further on: the next decode goes where it would have gone.
        let column = (hot.known - 1) / self.config.block_size;
        if self.config.seeded_bug != Some(SeededBug::StaleBlock) {
            hot.open_block(column, self.table.get(hot.slot).blocks[column as usize], self.config.block_size);
        }
        let decoding = hot.known - hot.planned == 1;
        let was_prefilling = !self.rows.is_decoding(entry.row);
        self.rows.set_decoding(entry.row, decoding);
        if !decoding && !was_prefilling {
            let arrival = |row: &Row| self.table.get(self.rows.get(*row).slot).arrival;
            let at = self.prefilling.partition_point(|row| arrival(row) < arrival(&entry.row));
            self.prefilling.insert(at, entry.row);
        }
    }

    fn pass_fences(&mut self) {
        let completed = self.flight.completed;
        self.rows.release(completed);
        self.fences.lift_steps(completed, &mut self.pool);
        self.flight.displaced.retain(|displaced| displaced.newest > completed);
    }
}
