//! A plan as the flat arrays a paged-attention kernel takes.

use super::flight::{Entry, StepPlan};
use super::table::Cold;
use super::{Scheduler, rows::Hot};
use crate::ids::{Row, StepId};

/// Arrays of one step. T tokens, S entries, L samples, G tokens to be filled in by the runner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepArrays {
    /// `[T]` tokens, −1 where the token is sampled by a step still in flight (see `gather`).
    pub token_ids: Vec<i64>,
    /// `[T]` positions within their sequence.
    pub positions: Vec<i64>,
    /// `[T]` block · block_size + offset.
    pub slot_mapping: Vec<i64>,
    /// `[S + 1]` first token of each entry.
    pub query_start_loc: Vec<i32>,
    /// `[S]` positions each entry attends to, its own included.
    pub seq_lens: Vec<i32>,
    /// `[L]` index of the token after which each sample is taken.
    pub logits_indices: Vec<i32>,
    /// `[S]` row of each entry.
    pub rows: Vec<i32>,
    /// `[L]` row of each sample.
    pub sampled_rows: Vec<i32>,
    /// `[G]` indices into `token_ids` to fill with …
    pub gather_positions: Vec<i32>,
    /// `[G]` … the last token these rows sampled.
    pub gather_rows: Vec<i32>,
}

impl StepArrays {
    fn clear(&mut self) {
        let Self { token_ids, positions, slot_mapping, query_start_loc, seq_lens, .. } = self;
        for column in [token_ids, positions, slot_mapping] {
            column.clear();
        }
        query_start_loc.clear();
        seq_lens.clear();
        let Self { logits_indices, rows, sampled_rows, gather_positions, gather_rows, .. } = self;
        for column in [logits_indices, rows, sampled_rows, gather_positions, gather_rows] {
            column.clear();
        }
    }

    fn reserve(&mut self, plan: &StepPlan) {
        let (tokens, entries) = (plan.num_tokens as usize, plan.entries.len());
        self.token_ids.reserve(tokens);
        self.positions.reserve(tokens);
        self.slot_mapping.reserve(tokens);
        self.query_start_loc.reserve(entries + 1);
        self.seq_lens.reserve(entries);
        self.rows.reserve(entries);
        self.logits_indices.reserve(entries);
        self.sampled_rows.reserve(entries);
    }
}

/// What a runner is told of a request when its row opens: all it needs to rebuild penalties, seeds and grammars.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    /// The row.
    pub row: Row,
    /// The request's number.
    pub id: u64,
    /// Its opaque payload.
    pub extra: &'a [u8],
    /// Its tokens known so far.
    pub token_ids: &'a [u32],
    /// How many of them are prompt.
    pub prompt_len: u32,
}

impl Scheduler {
    /// Builds the arrays of the newest step into `arrays`. Must come before anything else happens to the scheduler;
    /// `false` when `step` is not the newest one in flight.
    pub fn build_arrays(&self, step: StepId, arrays: &mut StepArrays) -> bool {
        arrays.clear();
        let Some(plan) = self.step(step).filter(|_| step == self.flight.planned) else {
            return false;
        };
        arrays.reserve(plan);
        let (decodes, chunks) = plan.entries.split_at(plan.num_decodes as usize);
        self.build_decodes(decodes, arrays);
        for entry in chunks {
            let hot = self.rows.get(entry.row);
            self.build_chunk(entry.start, entry.end(), hot, arrays);
            let end = arrays.token_ids.len() as i32;
            let row = entry.row.0 as i32;
            arrays.query_start_loc.push(end);
            arrays.seq_lens.push(entry.end() as i32);
            arrays.rows.push(row);
            if entry.samples() {
                arrays.logits_indices.push(end - 1);
                arrays.sampled_rows.push(row);
            }
        }
        true
    }

    /// Decodes, one token each: token i belongs to entry i, and each is sampled.
    fn build_decodes(&self, decodes: &[Entry], arrays: &mut StepArrays) {
        let count = decodes.len() as i32;
        arrays.query_start_loc.extend(0..=count);
        arrays.logits_indices.extend(0..count);
        arrays.rows.extend(decodes.iter().map(|entry| entry.row.0 as i32));
        arrays.sampled_rows.extend_from_slice(&arrays.rows);
        arrays.seq_lens.extend(decodes.iter().map(|entry| entry.start as i32 + 1));
        arrays.positions.extend(decodes.iter().map(|entry| i64::from(entry.start)));
        arrays.token_ids.resize(decodes.len(), -1);
        arrays.slot_mapping.resize(decodes.len(), 0);
        let columns = arrays.token_ids.iter_mut().zip(&mut arrays.slot_mapping);
        for (index, (entry, (token, slot))) in decodes.iter().zip(columns).enumerate() {
            let hot = self.rows.get(entry.row);
            *slot = i64::from(entry.start) + hot.slot_delta;
            // One output of the row is this step's own; any further one is still in flight and comes before it.
            if hot.pending > 1 {
                arrays.gather_positions.push(index as i32);
                arrays.gather_rows.push(entry.row.0 as i32);
            } else {
                *token = i64::from(hot.last_token);
            }
        }
    }

    fn build_chunk(&self, start: u32, end: u32, hot: &Hot, arrays: &mut StepArrays) {
        let cold: &Cold = self.table.get(hot.slot);
        let block_size = self.config.block_size;
        arrays.token_ids.extend(cold.tokens[start as usize..end as usize].iter().map(|&token| i64::from(token)));
        arrays.positions.extend(i64::from(start)..i64::from(end));
        let mut position = start;
        while position < end {
            let block = position / block_size;
            let stop = ((block + 1) * block_size).min(end);
            let first =
                i64::from(cold.blocks[block as usize].0) * i64::from(block_size) + i64::from(position % block_size);
            arrays.slot_mapping.extend(first..first + i64::from(stop - position));
            position = stop;
        }
    }

    /// Rows that begin with the newest step.
    pub fn opened(&self, step: StepId) -> impl Iterator<Item = Opened<'_>> {
        let plan = self.step(step).filter(|_| step == self.flight.planned);
        plan.into_iter().flat_map(|plan| &plan.opened).map(|&row| {
            let cold = self.table.get(self.rows.get(row).slot);
            let Cold { request, tokens, .. } = cold;
            Opened { row, id: request.id.0, extra: &request.extra, token_ids: tokens, prompt_len: request.prompt_len }
        })
    }

    /// Block tables of a step's entries, one line of `columns` blocks each (missing ones −1), appended to `out`.
    pub fn block_tables(&self, step: StepId, columns: usize, out: &mut Vec<i32>) {
        let Some(plan) = self.step(step).filter(|_| step == self.flight.planned) else {
            return;
        };
        for entry in &plan.entries {
            let blocks = &self.table.get(self.rows.get(entry.row).slot).blocks;
            let line = blocks.iter().map(|block| block.0 as i32);
            out.extend(line.chain(std::iter::repeat(-1)).take(columns));
        }
    }

    /// Blocks of the longest table in a step.
    pub fn max_blocks(&self, step: StepId) -> usize {
        let Some(plan) = self.step(step).filter(|_| step == self.flight.planned) else {
            return 0;
        };
        let blocks = |row: Row| self.table.get(self.rows.get(row).slot).blocks.len();
        plan.entries.iter().map(|entry| blocks(entry.row)).max().unwrap_or(0)
    }
}
