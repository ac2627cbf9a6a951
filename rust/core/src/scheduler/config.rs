//! What a scheduler is told once. The only place where these values are checked.

use super::error::ConfigError;
use crate::kv::PoolConfig;
use serde::{Deserialize, Serialize};

/// Configuration of a [`Scheduler`](super::Scheduler). Four fields are required, see [`SchedulerConfig::new`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerConfig {
    /// Blocks in the pool, reserved ones included.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Requests that may run at once.
    pub max_num_seqs: u32,
    /// Token budget of one step; at least `max_num_seqs`, so that no decode ever waits for budget.
    pub max_num_batched_tokens: u32,
    /// Largest chunk of one prompt in one step; `None`: what the budget leaves.
    pub chunk_size: Option<u32>,
    /// Longest sequence (prompt and outputs) in tokens; `None`: what the pool holds.
    pub max_model_len: Option<u32>,
    /// The model's end-of-sequence token.
    pub eos_token_id: Option<u32>,
    /// Steps that may be planned before the oldest of them is complete.
    pub max_steps_in_flight: u32,
    /// Keep finished blocks findable by their content.
    pub prefix_caching: bool,
    /// Blocks 0..n that are never handed out (a null block of a foreign engine).
    pub reserved_blocks: u32,
    /// Blocks left free when a request is admitted while others run, so that they can grow.
    pub watermark_blocks: u32,
    /// Seed of the block hash.
    pub hash_seed: u64,
    /// Bits of the block hash that are used; fewer only to provoke collisions in tests.
    pub hash_bits: u32,
    /// A bug to plant, so that the test suite can be tested. Never set elsewhere.
    #[doc(hidden)]
    pub seeded_bug: Option<SeededBug>,
}

/// Bugs that can be planted on purpose, each where it would really be made: a property suite that does not find them
/// proves nothing. None of them lies on the path of a steady decode step.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeededBug {
    /// A row is handed out again while a step in flight still names it.
    EarlyRowReuse,
    /// A reservation's blocks are freed while its source may still write them.
    FreeDuringCopy,
    /// The last token of a transfer's tail stays behind.
    TailOffByOne,
    /// A reservation counts as arrived with its first range.
    EarlyArrival,
    /// Blocks become findable when they are planned, not when they are written.
    FindableTooEarly,
    /// A failed step's positions count as computed.
    ForgottenFailure,
    /// After a failed step the next token goes into the block that a later step had opened.
    StaleBlock,
}

impl SchedulerConfig {
    /// The required fields; the others at their defaults.
    pub fn new(num_blocks: u32, block_size: u32, max_num_seqs: u32, max_num_batched_tokens: u32) -> Self {
        Self {
            num_blocks,
            block_size,
            max_num_seqs,
            max_num_batched_tokens,
            chunk_size: None,
            max_model_len: None,
            eos_token_id: None,
            max_steps_in_flight: 1,
            prefix_caching: true,
            reserved_blocks: 0,
            watermark_blocks: 0,
            hash_seed: 0,
            hash_bits: 64,
            seeded_bug: None,
        }
    }

    /// Blocks that can be handed out.
    pub fn usable_blocks(&self) -> u32 {
        self.num_blocks.saturating_sub(self.reserved_blocks)
    }

    /// Longest sequence in tokens that this configuration can hold.
    pub fn max_len(&self) -> u32 {
        // The last token of a sequence is sampled, never computed, and so needs no room in the pool.
        let pool = self.usable_blocks().saturating_mul(self.block_size).saturating_add(1);
        self.max_model_len.map_or(pool, |len| len.min(pool))
    }

    /// Rows of the runner's tables. A row stays taken until the newest step that names it is done, so with steps
    /// overlapping there are more of them than requests running.
    pub fn num_rows(&self) -> u32 {
        self.max_num_seqs.saturating_mul(self.max_steps_in_flight)
    }

    /// Columns of the runner's block table.
    pub fn max_blocks_per_row(&self) -> u32 {
        (self.max_len() - 1).div_ceil(self.block_size).min(self.usable_blocks()).max(1)
    }

    /// Names the first field whose value cannot be used.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let error = |field, value: u64, rule| Err(ConfigError { field, value, rule });
        let Self { num_blocks, block_size, max_num_seqs, max_num_batched_tokens, .. } = *self;
        if block_size == 0 || block_size > 1 << 16 {
            return error("block_size", block_size.into(), "must be in 1..=65536");
        }
        if self.usable_blocks() == 0 {
            return error("num_blocks", num_blocks.into(), "must exceed reserved_blocks");
        }
        if u64::from(num_blocks) * u64::from(block_size) >= 1 << 31 {
            return error("num_blocks", num_blocks.into(), "times block_size must stay below 2^31 tokens");
        }
        if max_num_seqs == 0 || max_num_seqs > 1 << 20 {
            return error("max_num_seqs", max_num_seqs.into(), "must be in 1..=1048576");
        }
        if max_num_batched_tokens < max_num_seqs {
            return error("max_num_batched_tokens", max_num_batched_tokens.into(), "must be at least max_num_seqs");
        }
        if self.chunk_size == Some(0) {
            return error("chunk_size", 0, "must be at least 1");
        }
        if let Some(len) = self.max_model_len
            && len < 2
        {
            return error("max_model_len", len.into(), "must be at least 2 (one prompt token, one output)");
        }
        if self.max_steps_in_flight == 0 || self.max_steps_in_flight > 16 {
            return error("max_steps_in_flight", self.max_steps_in_flight.into(), "must be in 1..=16");
        }
        if self.watermark_blocks >= self.usable_blocks() {
            return error("watermark_blocks", self.watermark_blocks.into(), "must be below the usable blocks");
        }
        if self.hash_bits == 0 || self.hash_bits > 64 {
            return error("hash_bits", self.hash_bits.into(), "must be in 1..=64");
        }
        Ok(())
    }

    pub(super) fn pool(&self) -> PoolConfig {
        PoolConfig {
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            reserved_blocks: self.reserved_blocks,
            prefix_caching: self.prefix_caching,
            hash_seed: self.hash_seed,
            hash_bits: self.hash_bits,
        }
    }
}
