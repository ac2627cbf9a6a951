//! Steps: what one plans, and those that are planned but not done.

use super::queue::Slot;
use crate::ids::{RequestId, Row, StepId};
use crate::kv::BlockId;
use crate::time::Time;
use serde::Serialize;
use std::collections::VecDeque;

/// One request's part in a step: positions `[start, start + len)` in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The row.
    pub row: Row,
    /// Whose turn in the row it was; see [`Hot::run`](super::rows::Hot::run).
    pub(super) run: u32,
    /// First position computed.
    pub start: u32,
    /// Number of positions, and in the top bit whether the last one is sampled.
    len_samples: u32,
}

impl Entry {
    const SAMPLES: u32 = 1 << 31;

    #[inline]
    pub(super) fn new(row: Row, run: u32, start: u32, len: u32, samples: bool) -> Self {
        Self { row, run, start, len_samples: len | if samples { Self::SAMPLES } else { 0 } }
    }

    /// Number of positions.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u32 {
        self.len_samples & !Self::SAMPLES
    }

    /// Position after the last one.
    #[inline]
    pub fn end(&self) -> u32 {
        self.start + self.len()
    }

    /// Whether a token is sampled after its last position.
    #[inline]
    pub fn samples(&self) -> bool {
        self.len_samples & Self::SAMPLES != 0
    }
}

/// An element of the runner's block table that changes before the step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TableWrite {
    /// Row of the table.
    pub row: Row,
    /// Index of the block within the sequence.
    pub column: u32,
    /// The block.
    pub block: BlockId,
}

/// A step as it was planned. Decode entries (one token each) come first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StepPlan {
    /// Its number.
    pub id: StepId,
    /// Parts, decodes first.
    pub entries: Vec<Entry>,
    /// Leading entries that are decodes.
    pub num_decodes: u32,
    /// Tokens over all entries.
    pub num_tokens: u32,
    /// Entries that sample.
    pub num_samples: u32,
    /// Changes of the block table.
    pub table_diff: Vec<TableWrite>,
    /// Rows that begin to be used by another request.
    pub opened: Vec<Row>,
    /// Rows left since the last step.
    pub closed: Vec<Row>,
    /// Requests preempted since the last step.
    pub preempted: Vec<RequestId>,
    /// When it was planned.
    pub planned_at: Time,
}

impl StepPlan {
    pub(super) fn push_decode(&mut self, row: Row, run: u32, start: u32) {
        debug_assert_eq!(self.num_decodes as usize, self.entries.len(), "decodes come first");
        self.entries.push(Entry::new(row, run, start, 1, true));
        self.num_decodes += 1;
        self.num_tokens += 1;
        self.num_samples += 1;
    }

    pub(super) fn push_chunk(&mut self, row: Row, run: u32, start: u32, len: u32, samples: bool) {
        self.entries.push(Entry::new(row, run, start, len, samples));
        self.num_tokens += len;
        self.num_samples += u32::from(samples);
    }

    fn clear(&mut self) {
        let Self { entries, table_diff, opened, closed, preempted, .. } = self;
        entries.clear();
        table_diff.clear();
        opened.clear();
        closed.clear();
        preempted.clear();
        (self.num_decodes, self.num_tokens, self.num_samples) = (0, 0, 0);
    }
}

/// What became of a step in flight.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It may be running.
    Pending,
    /// Done, but an older one is not.
    Completed(Vec<i64>),
    /// Failed, but an older one is not done.
    Failed,
}

/// A request that lost its row while steps in flight still name it: their tokens count, wherever it is now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Displaced {
    pub row: Row,
    pub run: u32,
    pub slot: Slot,
    pub newest: StepId,
}

/// Steps in flight, in order.
#[derive(Debug, Default)]
pub(super) struct Flight {
    steps: VecDeque<(StepPlan, Outcome)>,
    spare: Vec<StepPlan>,
    pub displaced: Vec<Displaced>,
    /// Newest step planned.
    pub planned: StepId,
    /// All steps up to this one are done.
    pub completed: StepId,
}

impl Flight {
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn fresh_plan(&mut self, now: Time) -> StepPlan {
        let mut plan = self.spare.pop().unwrap_or_default();
        plan.clear();
        plan.id = StepId(self.planned.0 + 1);
        plan.planned_at = now;
        plan
    }

    pub fn recycle(&mut self, plan: StepPlan) {
        self.spare.push(plan);
    }

    pub fn launch(&mut self, plan: StepPlan) {
        self.planned = plan.id;
        self.steps.push_back((plan, Outcome::Pending));
    }

    fn position(&self, step: StepId) -> Option<usize> {
        let first = self.steps.front()?.0.id;
        let index = step.0.checked_sub(first.0)? as usize;
        (index < self.steps.len()).then_some(index)
    }

    pub fn get(&self, step: StepId) -> Option<(&StepPlan, &Outcome)> {
        let (plan, outcome) = &self.steps[self.position(step)?];
        Some((plan, outcome))
    }

    pub fn is_oldest(&self, step: StepId) -> bool {
        self.position(step) == Some(0)
    }

    /// Notes the outcome of a step that is in flight.
    pub fn set_outcome(&mut self, step: StepId, outcome: Outcome) {
        let index = self.position(step).expect("step is in flight");
        self.steps[index].1 = outcome;
    }

    /// Takes the oldest step out, if it is done.
    pub fn pop_done(&mut self) -> Option<(StepPlan, Outcome)> {
        match self.steps.front() {
            Some((_, Outcome::Pending)) | None => None,
            Some(_) => self.steps.pop_front(),
        }
    }

    /// Takes the oldest step out.
    pub fn pop(&mut self) -> Option<StepPlan> {
        self.steps.pop_front().map(|(plan, _)| plan)
    }

    pub fn plans(&self) -> impl Iterator<Item = &StepPlan> {
        self.steps.iter().map(|(plan, _)| plan)
    }

    /// The displaced request that an entry speaks of.
    pub fn find_displaced(&self, entry: &Entry) -> Option<Slot> {
        self.displaced.iter().find(|d| d.row == entry.row && d.run == entry.run).map(|d| d.slot)
    }

    pub fn forget_displaced(&mut self, slot: Slot) {
        self.displaced.retain(|d| d.slot != slot);
    }
}
