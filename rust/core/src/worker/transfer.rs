//! Which tokens of which block go where. The only place that knows two block sizes.

use crate::kv::BlockId;
use crate::message::TokenRange;
use serde::{Deserialize, Serialize};

/// Tokens that lie together in one block on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Block at the source …
    pub src_block: BlockId,
    /// … and first token in it.
    pub src_offset: u32,
    /// Block at the destination …
    pub dst_block: BlockId,
    /// … and first token in it.
    pub dst_offset: u32,
    /// Tokens.
    pub num_tokens: u32,
}

/// Cuts a range of positions into runs, given both block tables (from position 0) and block sizes in tokens.
///
/// # Panics
/// If a table is too short for the range.
///
/// ```
/// use pdsched_core::{BlockId, message::TokenRange, worker::plan_transfer};
/// let (source, destination) = ([BlockId(5), BlockId(6), BlockId(7)], [BlockId(1), BlockId(0)]);
/// let runs = plan_transfer((&source, 16), (&destination, 32), TokenRange { start: 0, end: 40 });
/// let runs: Vec<_> = runs.iter().map(|r| (r.src_block.0, r.dst_block.0, r.dst_offset, r.num_tokens)).collect();
/// assert_eq!(runs, [(5, 1, 0, 16), (6, 1, 16, 16), (7, 0, 0, 8)]);
/// ```
pub fn plan_transfer(source: (&[BlockId], u32), destination: (&[BlockId], u32), range: TokenRange) -> Vec<Run> {
    let mut runs = Vec::with_capacity(range.len().div_ceil(source.1.min(destination.1)) as usize + 1);
    let mut position = range.start;
    while position < range.end {
        let place = |(blocks, size): (&[BlockId], u32)| (blocks[(position / size) as usize], position % size);
        let ((src_block, src_offset), (dst_block, dst_offset)) = (place(source), place(destination));
        let together = (source.1 - src_offset).min(destination.1 - dst_offset);
        let num_tokens = together.min(range.end - position);
        runs.push(Run { src_block, src_offset, dst_block, dst_offset, num_tokens });
        position += num_tokens;
    }
    runs
}
