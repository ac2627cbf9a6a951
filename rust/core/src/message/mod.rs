//! Every message between parties: what it means, what it carries, how it is written. Nothing else defines one.
//!
//! | from → to | messages |
//! |---|---|
//! | worker → cluster | [`Hello`], [`Reserved`], [`ReserveRefused`], [`Rejected`], [`StepReport`], [`AttemptFailed`], [`Load`] |
//! | cluster → worker | [`Welcome`], [`PeerUp`], [`PeerDead`](Message::PeerDead), [`Reserve`], [`Prefill`], [`Decode`], [`Abort`](Message::Abort), [`Heartbeat`](Message::Heartbeat) |
//! | prefill → decode | [`Sent`], [`HandOff`], [`FenceAck`](Message::FenceAck), [`RenewOut`](Message::RenewOut) |
//! | decode → prefill | [`Release`](Message::Release), [`Fence`](Message::Fence), [`RenewIn`](Message::RenewIn) |
//!
//! A message may come late or again; every receiver checks the envelope and the attempt and drops what is not for it,
//! counted. A number that is missing in a sender's count means a lost message: what it may have been about begins anew. Leases travel as durations.

mod codec;
mod display;

pub use codec::{DecodeError, VERSION};

use crate::ids::{Attempt, Epoch, Incarnation, Peer, TransferId};
use crate::kv::BlockId;
use crate::request::{FinishReason, Request};
use crate::time::Nanos;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Who sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Party {
    /// The one cluster of a deployment.
    Cluster,
    /// A worker in one of its lives.
    Worker(Peer),
}

/// A message with the facts by which a receiver decides whether it is for it, and for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The sender, in its present life.
    pub from: Party,
    /// The life of the receiving worker that is meant (ignored by the cluster).
    pub to: Incarnation,
    /// The cluster's epoch as the sender knows it (0 before the first `Welcome`).
    pub epoch: Epoch,
    /// Number of this message on its way from this sender to this receiver, from 1.
    pub seq: u64,
    /// What is said.
    pub body: Message,
}

/// A half-open range of token positions `[start, end)` of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenRange {
    /// First position.
    pub start: u32,
    /// Position after the last one.
    pub end: u32,
}

impl TokenRange {
    /// Number of tokens.
    pub fn len(&self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// No token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part both ranges cover.
    pub fn intersect(&self, other: TokenRange) -> TokenRange {
        let start = self.start.max(other.start);
        TokenRange { start, end: self.end.min(other.end).max(start) }
    }
}

/// What a worker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Turns prompts into KV and hands it off.
    Prefill,
    /// Receives KV and generates.
    Decode,
    /// Does both phases of a request itself.
    Both,
}

impl Role {
    /// The word used in Python and in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Both => "both",
        }
    }
}

/// A worker introduces itself, at start and again whenever it has forgotten or lost its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// What it is for.
    pub role: Role,
    /// Everything that must agree before KV may flow: model, dtype, layers, heads. Opaque to the core.
    pub fingerprint: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Usable blocks.
    pub num_blocks: u32,
    /// Raised whenever the worker has given up everything it was doing; the same one again is a mere repetition.
    pub generation: u32,
    /// Longest sequence in tokens.
    pub max_model_len: u32,
    /// Requests that can run at once.
    pub max_num_seqs: u32,
    /// How its peers reach it (mailbox, arena): opaque to the core, handed on in [`PeerUp`].
    pub address: ByteBuf,
}

/// The cluster accepts a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// A worker that hears nothing from the cluster for this long aborts everything and says Hello again.
    pub cluster_silence_ns: Nanos,
    /// How often it must send [`Load`], be it unchanged.
    pub heartbeat_ns: Nanos,
}

/// Another worker joined; KV may flow to it and from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerUp {
    /// The one that joined.
    pub peer: Peer,
    /// Its address as it gave it in [`Hello`].
    pub address: ByteBuf,
}

/// Cluster → decode: make room for a request whose prompt `source` will compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// The whole request.
    pub request: Request,
    /// The prefill worker that will write, and the only one whose word counts.
    pub source: Peer,
    /// The reservation lapses when nothing is heard from the source for this long.
    pub lease_ns: Nanos,
}

/// Where KV goes: the answer of the decode side, handed on to the prefill side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The decode worker.
    pub peer: Peer,
    /// Its name for this transfer.
    pub transfer: TransferId,
    /// Token positions that must travel; what is before them is in its cache already.
    pub missing: TokenRange,
    /// Its block table for the prompt, from position 0.
    pub blocks: Vec<BlockId>,
    /// Its block size in tokens.
    pub block_size: u32,
}

impl Destination {
    /// Whether it can take the KV of a request with this many tokens; the text names what is wrong.
    pub fn check(&self, num_tokens: u32) -> Result<(), String> {
        let Self { missing: TokenRange { start, end }, block_size, .. } = *self;
        let room = u64::from(block_size) * self.blocks.len() as u64;
        if start > end || end != num_tokens {
            return Err(format!("destination misses positions {start}..{end} of {num_tokens} tokens"));
        }
        if room < u64::from(num_tokens) {
            let blocks = self.blocks.len();
            return Err(format!("destination has {blocks} blocks of {block_size} tokens for {num_tokens}"));
        }
        Ok(())
    }
}

/// Decode → cluster: room is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// Where the KV shall go.
    pub destination: Destination,
}

/// Decode → cluster: no room now; the cluster places it elsewhere or asks again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveRefused {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// Blocks free at that moment.
    pub free_blocks: u32,
    /// Blocks the request would have taken.
    pub needed_blocks: u32,
}

/// Worker → cluster: the request can never run here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// The reason, naming the value.
    pub reason: String,
}

/// Cluster → prefill: compute the prompt, sample the first token, ship the KV.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefill {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// The whole request.
    pub request: Request,
    /// Where the KV goes.
    pub destination: Destination,
    /// The source gives up when nothing is heard from the destination for this long.
    pub lease_ns: Nanos,
}

/// Cluster → `both` worker: run the whole request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decode {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// The whole request.
    pub request: Request,
}

/// How a request ended on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// Why.
    pub reason: FinishReason,
}

/// What one completed step brought, in columns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReport {
    /// One entry per request that got tokens.
    pub attempts: Vec<Attempt>,
    /// Per entry: index of its first new output, counted from the request's first output.
    pub first_index: Vec<u32>,
    /// Per entry: number of new outputs.
    pub counts: Vec<u32>,
    /// The outputs, entry after entry.
    pub token_ids: Vec<u32>,
    /// One opaque blob per output (logprobs), or empty when there are none at all.
    pub extras: Vec<ByteBuf>,
    /// Requests that ended in this step.
    pub ends: Vec<End>,
    /// Prefill side: (attempt, prompt tokens computed so far) of hand-off requests that moved.
    pub progress: Vec<(Attempt, u32)>,
    /// Decode side: hand-offs that are complete; from now on this worker generates.
    pub activated: Vec<Attempt>,
}

/// Worker → cluster: this try cannot go on here; nothing of it is left that could still speak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptFailed {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// What happened.
    pub reason: FailReason,
}

/// Why a try failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailReason {
    /// The other side was silent for the length of its lease.
    LeaseExpired,
    /// Bytes could not be copied.
    TransferFailed,
    /// The other side is dead.
    PeerLost,
    /// The other side fenced it off.
    Fenced,
    /// The runner failed the step too often.
    StepFailed,
}

impl FailReason {
    /// The word used in logs and golden texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeaseExpired => "lease_expired",
            Self::TransferFailed => "transfer_failed",
            Self::PeerLost => "peer_lost",
            Self::Fenced => "fenced",
            Self::StepFailed => "step_failed",
        }
    }
}

/// Worker → cluster: how full it is; also its heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Newest message of the cluster that these figures take into account.
    pub acked_seq: u64,
    /// Blocks owned by somebody: running, reserved, quarantined or waiting for a fence.
    pub used_blocks: u32,
    /// Blocks that could be handed out.
    pub free_blocks: u32,
    /// Requests with a row.
    pub running: u32,
    /// Requests without one.
    pub waiting: u32,
    /// Prompt tokens still to be computed, over all requests.
    pub prefill_tokens: u64,
    /// Tokens of KV held by running requests (for the view; `used_blocks` decides).
    pub kv_tokens: u64,
}

/// Prefill → decode: these positions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// The destination's name for the transfer.
    pub transfer: TransferId,
    /// What has arrived.
    pub range: TokenRange,
}

/// Prefill → decode: the first output, and with it the request. The KV may still be under way; with a verdict the
/// request has ended and nothing more will be written (a `FenceAck` follows).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOff {
    /// The try it belongs to.
    pub attempt: Attempt,
    /// The destination's name for the transfer.
    pub transfer: TransferId,
    /// Index of the output, counted from the request's first.
    pub index: u32,
    /// The output.
    pub token_id: u32,
    /// Its opaque blob, empty if none.
    pub extra: ByteBuf,
    /// The request ended with this output.
    pub finish: Option<FinishReason>,
}

/// Everything that can be said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // each body documents itself
pub enum Message {
    Hello(Hello),
    Reserved(Reserved),
    ReserveRefused(ReserveRefused),
    Rejected(Rejected),
    StepReport(StepReport),
    AttemptFailed(AttemptFailed),
    Load(Load),
    Welcome(Welcome),
    PeerUp(PeerUp),
    /// Proven dead: its process ended or its memory is gone. What it might have written, it will not.
    PeerDead(Peer),
    Reserve(Reserve),
    Prefill(Prefill),
    Decode(Decode),
    /// End this try; unknown ones are ignored.
    Abort(Attempt),
    Sent(Sent),
    HandOff(HandOff),
    /// I shall never write into this transfer again (also if I never heard of it).
    FenceAck(TransferId),
    /// I am the source of these transfers, alive, and still mean them.
    RenewOut(Vec<TransferId>),
    /// I am their destination, alive, and still mean them.
    RenewIn(Vec<TransferId>),
    /// The cluster is alive and has had nothing else to say for a while; answers a [`Load`].
    Heartbeat,
    /// The hand-off is complete: the source may free its blocks.
    Release(TransferId),
    /// Stop writing into this transfer, and say so.
    Fence(TransferId),
}
