//! How requests leave: stop conditions, abort, finish. Every id ends exactly once and is told exactly once.

use super::queue::Slot;
use super::rows::{FIRST, HAND_OFF, STOPS};
use super::table::{Cold, Phase, Timing};
use super::{Outputs, Scheduler, SchedulerConfig};
use crate::ids::{RequestId, Row};
use crate::request::FinishReason;
use crate::time::Time;

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub id: RequestId,
    /// Why; `None`: its KV went elsewhere and was released here.
    pub reason: Option<FinishReason>,
    /// Outputs it had.
    pub num_outputs: u32,
    /// Its moments.
    pub timing: Timing,
}

/// Whether the newest token of a request ends it.
pub(super) fn verdict(config: &SchedulerConfig, cold: &Cold) -> Option<FinishReason> {
    let request = &cold.request;
    let token = *cold.tokens.last()?;
    if cold.num_outputs() >= request.min_tokens {
        let eos = config.eos_token_id == Some(token) && !request.ignore_eos;
        if eos || request.stop_token_ids.contains(&token) {
            return Some(FinishReason::Stop);
        }
    }
    let limit = request.max_total().min(config.max_model_len.unwrap_or(u32::MAX));
    (cold.tokens.len() as u32 >= limit).then_some(FinishReason::Length)
}

impl Scheduler {
    /// Ends a request, whatever it is doing. False (and counted) when it is not here.
    pub fn abort(&mut self, id: RequestId, now: Time) -> bool {
        let Some(slot) = self.table.find(id) else {
            self.stats.unknown_requests += 1;
            return false;
        };
        self.remove(slot, Some(FinishReason::Abort), now);
        true
    }

    /// Ends that were not told by a completion yet.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// A token sampled in its row becomes known. The common case touches the row and the end of the token list only.
    #[inline]
    pub(super) fn accept(&mut self, row: Row, token: u32, now: Time, out: &mut Outputs) {
        let hot = self.rows.get_mut(row);
        hot.known += 1;
        hot.pending -= 1;
        hot.last_token = token;
        let (slot, flags) = (hot.slot, hot.flags);
        out.push_token(hot.id, token);
        let ends = hot.known == hot.limit || flags & (STOPS | HAND_OFF) != 0;
        hot.flags &= !FIRST;
        self.stats.output_tokens += 1;
        let cold = self.table.get_mut(slot);
        cold.tokens.push(token);
        if flags & FIRST != 0 {
            cold.timing.first_token.get_or_insert(now);
        }
        if ends {
            self.judge(slot, now, out);
        }
    }

    /// A token becomes known whose request was preempted meanwhile.
    pub(super) fn accept_displaced(&mut self, slot: Slot, token: u32, now: Time, out: &mut Outputs) {
        let cold = self.table.get_mut(slot);
        cold.pending -= 1;
        if cold.hand_off {
            // A hand-off whose KV is gone has nothing to send with its output: it computes and samples again.
            self.stats.dropped_tokens += 1;
            return;
        }
        cold.tokens.push(token);
        cold.timing.first_token.get_or_insert(now);
        out.push_token(cold.request.id, token);
        self.stats.output_tokens += 1;
        self.judge(slot, now, out);
    }

    /// The newest token may end its request, or be all that was wanted of it here.
    fn judge(&mut self, slot: Slot, now: Time, out: &mut Outputs) {
        let cold = self.table.get(slot);
        if let Some(reason) = verdict(&self.config, cold) {
            self.remove(slot, Some(reason), now);
        } else if cold.hand_off {
            self.hold(slot, out);
        }
    }

    /// The prefill half is done: the row is left, the blocks stay.
    fn hold(&mut self, slot: Slot, out: &mut Outputs) {
        self.leave_row(slot);
        self.flight.forget_displaced(slot);
        let cold = self.table.get_mut(slot);
        cold.phase = Phase::Held;
        out.held.push(cold.request.id);
    }

    /// Ends a request: takes it out of wherever it is. `None`: its KV went elsewhere.
    pub(super) fn remove(&mut self, slot: Slot, reason: Option<FinishReason>, now: Time) {
        match self.table.get(slot).phase {
            Phase::Waiting => {
                let ticket = self.table.get(slot).ticket(slot);
                self.order.remove(ticket);
            }
            Phase::Ready => self.ready.retain(|&ready| ready != slot),
            Phase::Running(_) => self.leave_row(slot),
            Phase::Reserved(_) | Phase::Held => {}
        }
        self.free_blocks(slot);
        self.flight.forget_displaced(slot);
        let cold = self.table.remove(slot);
        let (id, num_outputs) = (cold.request.id, cold.num_outputs());
        self.finished.push(Finished { id, reason, num_outputs, timing: Timing { finished: now, ..cold.timing } });
    }
}
