//! What a caller can do wrong. What a worker does wrong is counted in [`ClusterStats`](super::ClusterStats), never raised.

use crate::ids::RequestId;
use thiserror::Error;

/// A configuration value that makes no sense.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field} is {value}, needs {needs}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// What would be accepted.
    pub needs: String,
}

/// A request that was not taken; nothing has changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ClusterError {
    /// The id is in use.
    #[error("request {0} is already there and not finished")]
    DuplicateId(RequestId),
    /// There is nothing to continue.
    #[error("request {0} has an empty prompt")]
    EmptyPrompt(RequestId),
    /// The prompt's length contradicts the tokens.
    #[error("request {request} has prompt_len {prompt_len}, needs 1 to {tokens}, the number of its tokens")]
    PromptLen {
        /// The request.
        request: RequestId,
        /// The length it gave.
        prompt_len: u32,
        /// How many tokens it brought.
        tokens: usize,
    },
    /// There is nothing to generate.
    #[error("request {request} has max_tokens {max_tokens}, needs more than the {known} outputs it brings")]
    MaxTokens {
        /// The request.
        request: RequestId,
        /// The limit it gave.
        max_tokens: u32,
        /// Outputs already known.
        known: u32,
    },
    /// No registered worker could hold it, were it empty.
    #[error(
        "request {request} has {tokens} tokens and needs room for one more; the largest limit of any worker is {limit}"
    )]
    TooLong {
        /// The request.
        request: RequestId,
        /// Its tokens.
        tokens: usize,
        /// Tokens of the largest sequence that the workers, together, can take.
        limit: u64,
    },
    /// Too many are waiting.
    #[error("request {request} not queued: {waiting} requests are waiting already, max_queue is {limit}")]
    QueueFull {
        /// The request.
        request: RequestId,
        /// How many wait.
        waiting: usize,
        /// How many may.
        limit: u32,
    },
}
