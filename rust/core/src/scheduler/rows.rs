//! The hot columns: one cache line per row, and nothing else is touched when a steady decode step is planned.

use super::queue::Slot;
use crate::ids::{RequestId, Row, StepId};
use crate::kv::BlockId;

/// Flag: a token may end the request before its limit (stop tokens, end of sequence, `min_tokens`).
pub(super) const STOPS: u32 = 1;
/// Flag: prefill side of a hand-off; ends here with its first output.
pub(super) const HAND_OFF: u32 = 2;

/// Flag: it has no output yet, as far as its row knows.
pub(super) const FIRST: u32 = 4;

/// What planning needs of a running request. Exactly one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Hot {
    /// The caller's number, for the output column.
    pub id: RequestId,
    /// Newest step that names the row.
    pub newest: StepId,
    /// Position + delta = slot in the pool, for positions in the block that decodes write into.
    pub slot_delta: i64,
    /// Positions whose KV is computed, or will be by the steps in flight.
    pub planned: u32,
    /// Tokens known: prompt and confirmed outputs.
    pub known: u32,
    /// Outputs that steps in flight will bring.
    pub pending: u32,
    /// Positions up to the end of that block. Further blocks are there only after a failed step.
    pub room: u32,
    /// Number of tokens at which it ends here.
    pub limit: u32,
    /// The newest known token.
    pub last_token: u32,
    /// Confirmed positions at which its next block is full and becomes findable.
    pub next_full: u32,
    /// [`STOPS`], [`HAND_OFF`], [`FIRST`].
    pub flags: u32,
    /// Its cold part.
    pub slot: Slot,
    /// Occupancy of this row; an entry of a step with another number belongs to somebody who left.
    pub run: u32,
}

impl Hot {
    /// Tokens known or on their way.
    pub fn num_tokens(&self) -> u32 {
        self.known + self.pending
    }

    /// The block that decodes write into: `block`, the sequence's `column`-th.
    pub fn open_block(&mut self, column: u32, block: BlockId, block_size: u32) {
        self.room = (column + 1) * block_size;
        self.slot_delta = (i64::from(block.0) - i64::from(column)) * i64::from(block_size);
    }

    /// A next token is to be computed and nothing known forbids it.
    pub fn wants_step(&self) -> bool {
        self.num_tokens() < self.limit
    }
}

/// Rows with their hot state, the set of decoding ones, and the free ones.
pub(super) struct Rows {
    hot: Vec<Hot>,
    decoding: Vec<u64>,
    num_decoding: u32,
    free: Vec<Row>,
    in_use: u32,
    /// Left by their request, still named by a step in flight.
    leaving: Vec<(StepId, Row)>,
}

impl Rows {
    pub fn new(num_rows: u32) -> Self {
        Self {
            hot: vec![Hot::default(); num_rows as usize],
            decoding: vec![0; num_rows.div_ceil(64) as usize],
            num_decoding: 0,
            free: (0..num_rows).rev().map(Row).collect(),
            in_use: 0,
            leaving: Vec::new(),
        }
    }

    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    pub fn num_decoding(&self) -> u32 {
        self.num_decoding
    }

    pub fn any_free(&self) -> bool {
        !self.free.is_empty()
    }

    #[inline]
    pub fn get(&self, row: Row) -> &Hot {
        &self.hot[row.0 as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, row: Row) -> &mut Hot {
        &mut self.hot[row.0 as usize]
    }

    /// Takes a free row. `hot.run` is set to the row's next occupancy.
    pub fn open(&mut self, mut hot: Hot) -> Row {
        let row = self.free.pop().expect("a row is free");
        hot.run = self.get(row).run.wrapping_add(1);
        *self.get_mut(row) = hot;
        self.in_use += 1;
        row
    }

    /// The request leaves; the row is free once every step up to its newest is done.
    pub fn close(&mut self, row: Row, completed: StepId) -> Hot {
        self.set_decoding(row, false);
        let hot = *self.get(row);
        self.get_mut(row).run = hot.run.wrapping_add(1);
        self.in_use -= 1;
        if hot.newest <= completed {
            self.free.push(row)
        } else {
            self.leaving.push((hot.newest, row))
        }
        hot
    }

    /// Steps up to `completed` are done: rows that waited for them are free.
    pub fn release(&mut self, completed: StepId) {
        let free = &mut self.free;
        self.leaving.retain(|&(step, row)| {
            let done = step <= completed;
            if done {
                free.push(row);
            }
            !done
        });
    }

    pub fn set_decoding(&mut self, row: Row, on: bool) {
        let (word, bit) = (&mut self.decoding[row.0 as usize / 64], 1u64 << (row.0 % 64));
        let was = *word & bit != 0;
        if on && !was {
            *word |= bit;
            self.num_decoding += 1;
        } else if !on && was {
            *word &= !bit;
            self.num_decoding -= 1;
        }
    }

    pub fn is_decoding(&self, row: Row) -> bool {
        self.decoding[row.0 as usize / 64] & (1 << (row.0 % 64)) != 0
    }

    /// Words of the set of decoding rows; row = 64 · index + bit.
    pub fn decoding_words(&self) -> usize {
        self.decoding.len()
    }

    #[inline]
    pub fn decoding_word(&self, index: usize) -> u64 {
        self.decoding[index]
    }

    /// Decoding rows in row order.
    pub fn decoding(&self) -> impl Iterator<Item = Row> + '_ {
        self.decoding.iter().enumerate().flat_map(|(index, &word)| {
            let bits = std::iter::successors(Some(word), |bits| Some(bits & bits.wrapping_sub(1)));
            bits.take_while(|&bits| bits != 0).map(move |bits| Row(index as u32 * 64 + bits.trailing_zeros()))
        })
    }

    /// Rows that are free or leaving, for integrity checks.
    pub fn vacant(&self) -> impl Iterator<Item = Row> + '_ {
        self.free.iter().copied().chain(self.leaving.iter().map(|&(_, row)| row))
    }

    pub fn len(&self) -> usize {
        self.hot.len()
    }
}
