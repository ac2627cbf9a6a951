//! A request as it is handed in, and how it can end.

use crate::ids::RequestId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A request for generation. Cheap to clone: tokens and the opaque payload are shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The caller's number for it; unique among the unfinished requests of one scheduler or cluster.
    pub id: RequestId,
    /// The prompt, followed by the outputs already known when a request continues one that ran elsewhere.
    pub token_ids: Arc<[u32]>,
    /// Length of the prompt in tokens; whatever follows in `token_ids` counts as output.
    pub prompt_len: u32,
    /// Outputs at most, those already in `token_ids` included.
    pub max_tokens: u32,
    /// Outputs below which no stop token ends the request.
    pub min_tokens: u32,
    /// Tokens that end the request, besides the model's end-of-sequence token. The one found is part of the output.
    pub stop_token_ids: Arc<[u32]>,
    /// The model's end-of-sequence token does not end this request.
    pub ignore_eos: bool,
    /// Prefix-cache namespace: blocks are shared only within one.
    pub namespace: u64,
    /// Opaque payload for the runner (sampling parameters, grammar, adapter); travels wherever the request goes.
    #[serde(with = "shared_bytes")]
    pub extra: Arc<[u8]>,
}

impl Request {
    /// A request with a prompt and a number of outputs, everything else at its default.
    pub fn new(id: u64, prompt: &[u32], max_tokens: u32) -> Self {
        Self {
            id: RequestId(id),
            token_ids: prompt.into(),
            prompt_len: prompt.len() as u32,
            max_tokens,
            min_tokens: 0,
            stop_token_ids: Arc::from([]),
            ignore_eos: false,
            namespace: 0,
            extra: Arc::from([]),
        }
    }

    /// Outputs already known when the request is handed in.
    pub fn num_known_outputs(&self) -> u32 {
        (self.token_ids.len() as u32).saturating_sub(self.prompt_len)
    }

    /// Tokens it can have at most when it ends.
    pub fn max_total(&self) -> u32 {
        self.prompt_len.saturating_add(self.max_tokens)
    }
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token or the end-of-sequence token was sampled.
    Stop,
    /// `max_tokens` or the model's length was reached.
    Length,
    /// The caller ended it.
    Abort,
    /// It outgrew an empty pool.
    Capacity,
    /// No worker could serve it within the time allowed.
    Timeout,
    /// It can never be served: longer than the model or every pool, as the worker that refused it said.
    Refused,
    /// It failed too often.
    Error,
}

impl FinishReason {
    /// The word used in Python, in logs and in golden texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Capacity => "capacity",
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `Arc<[u8]>` as a msgpack byte string instead of an array of numbers.
pub(crate) mod shared_bytes {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::sync::Arc;

    pub fn serialize<S: Serializer>(bytes: &Arc<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
        Ok(serde_bytes::ByteBuf::deserialize(deserializer)?.into_vec().into())
    }
}
