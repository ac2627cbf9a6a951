//! What a caller can do wrong. Every text names the value; nothing has changed when one is returned.

use crate::ids::{RequestId, StepId};
use thiserror::Error;

/// A configuration value that cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field} = {value}: {rule}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// What it would have to be.
    pub rule: &'static str,
}

/// A request that is refused when it is handed in.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // the texts say it
pub enum AddError {
    #[error("request {0}: the prompt is empty")]
    EmptyPrompt(RequestId),
    #[error("request {id}: prompt_len = {prompt_len} is not in 1..={tokens} (tokens given)")]
    PromptLen { id: RequestId, prompt_len: u32, tokens: usize },
    #[error("request {id}: max_tokens = {max_tokens} leaves nothing to generate after {known} known outputs")]
    NothingToGenerate { id: RequestId, max_tokens: u32, known: u32 },
    #[error("request {id}: min_tokens = {min_tokens} exceeds max_tokens = {max_tokens}")]
    MinTokens { id: RequestId, min_tokens: u32, max_tokens: u32 },
    #[error("request {id}: {tokens} tokens plus one exceed max_model_len = {max_model_len}")]
    LongerThanModel { id: RequestId, tokens: u32, max_model_len: u32 },
    #[error("request {id}: {tokens} tokens need {needed} blocks, the whole pool has {usable}")]
    LargerThanPool { id: RequestId, tokens: u32, needed: u32, usable: u32 },
    #[error("request {0} is unfinished already")]
    Duplicate(RequestId),
}

/// A completion that cannot be taken as it is.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // the texts say it
pub enum CompleteError {
    #[error("step {step} samples {expected} tokens, got {got}")]
    NumTokens { step: StepId, expected: usize, got: usize },
    #[error("step {step}: token {token} at index {index} is not a token id (0..2^32)")]
    Token { step: StepId, index: usize, token: i64 },
    #[error("step {0} was completed or failed already")]
    Twice(StepId),
}

/// A reservation that is not granted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReserveError {
    /// Not now.
    #[error("{needed} blocks needed, {free} free")]
    NoSpace {
        /// Blocks it would take.
        needed: u32,
        /// Blocks that can be taken.
        free: u32,
    },
    /// Never.
    #[error(transparent)]
    Invalid(#[from] AddError),
}
