//! What a [`BlockPool`](super::BlockPool) may refuse. Breaking a method's contract (releasing what nobody owns) panics
//! instead: it is a bug of the caller, and going on would hand one block to two requests.

use thiserror::Error;

/// A refusal; the pool is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// More blocks are needed than are free.
    #[error("no space: {needed} blocks needed, {free} free")]
    NoSpace {
        /// Blocks that would leave the free list, free hits included.
        needed: u32,
        /// Blocks on the free list, hits included.
        free: u32,
    },
    /// A field of [`PoolConfig`](super::PoolConfig) is out of range.
    #[error("invalid pool config: {field} = {value}, {reason}")]
    InvalidConfig {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        reason: String,
    },
}
