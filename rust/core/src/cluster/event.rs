//! What goes into the cluster and what comes out of it.

use crate::ids::{Attempt, Peer, RequestId, WorkerId};
use crate::message::{Envelope, Role};
use crate::request::{FinishReason, Request};
use crate::time::{Nanos, Time};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use smallvec::SmallVec;
use std::fmt;

/// Something happened. A recorded list of these with their times replays to identical actions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterEvent {
    /// A client wants this.
    Submit(Request),
    /// A client wants it no more. Unknown and finished ids are ignored, counted.
    Abort(RequestId),
    /// A worker said something.
    Message(Envelope),
    /// A worker is proven dead: its process has ended (exit status), so it will not write again.
    WorkerDead(Peer),
}

/// Output tokens of one report; one or a few of them, so they stay off the heap.
pub type Tokens = SmallVec<[u32; 4]>;

/// Something to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterAction {
    /// Carry this message to that worker. Messages to one worker stay in order.
    Send {
        /// The receiver.
        to: Peer,
        /// The message.
        message: Envelope,
    },
    /// New outputs for the client: each exactly once, in order, without a gap.
    Emit {
        /// The request.
        request: RequestId,
        /// Index of the first one among the request's outputs.
        index: u32,
        /// The outputs.
        token_ids: Tokens,
        /// One opaque blob per output, or empty when there are none.
        extras: Vec<ByteBuf>,
    },
    /// The request ended: exactly once, and nothing about it follows.
    Finish {
        /// The request.
        request: RequestId,
        /// Why.
        reason: FinishReason,
        /// In words, where the reason alone does not say enough.
        detail: Option<String>,
        /// Its life.
        timing: Timing,
    },
    /// The request entered a phase other than the last one. For views and traces.
    Entered {
        /// The request and its try (number 0 before the first).
        attempt: Attempt,
        /// The phase.
        phase: Phase,
        /// The prefill worker it is on.
        prefill: Option<WorkerId>,
        /// The decode worker it is on.
        decode: Option<WorkerId>,
    },
    /// A worker joined, or came back.
    WorkerUp {
        /// Which.
        peer: Peer,
        /// What it is for.
        role: Role,
    },
    /// A worker is gone, or taken for gone.
    WorkerDown {
        /// Which.
        peer: Peer,
        /// Why.
        reason: DownReason,
    },
    /// A worker introduced itself and was not accepted.
    WorkerRefused {
        /// Which.
        peer: Peer,
        /// Why, naming the values.
        reason: String,
    },
}

impl fmt::Display for ClusterAction {
    /// One line, for logs and golden tests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { to, message } => write!(f, "{to} <- #{} {}", message.seq, message.body),
            Self::Emit { request, index, token_ids, .. } => write!(f, "emit {request}@{index} {token_ids:?}"),
            Self::Finish { request, reason, detail, .. } => {
                write!(f, "finish {request} {reason}")?;
                detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
            }
            Self::Entered { attempt, phase, prefill, decode } => {
                write!(f, "{attempt} {phase}")?;
                match (prefill, decode) {
                    (Some(p), Some(d)) if p == d => write!(f, " on w{p}"),
                    (Some(p), Some(d)) => write!(f, " w{p} -> w{d}"),
                    (None, Some(d)) => write!(f, " on w{d}"),
                    _ => Ok(()),
                }
            }
            Self::WorkerUp { peer, role } => write!(f, "{peer} up, {}", role.as_str()),
            Self::WorkerDown { peer, reason } => write!(f, "{peer} down, {}", reason.as_str()),
            Self::WorkerRefused { peer, reason } => write!(f, "{peer} refused: {reason}"),
        }
    }
}

/// A part of a request's life: its state, its trace event and a line of its latency breakdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waits for a first place.
    Queued,
    /// Waits for a place after a loss.
    Resuming,
    /// The decode worker is making room.
    Reserving,
    /// The prompt is being computed, its KV under way.
    Prefilling,
    /// The first token is there, the KV not yet all.
    HandedOff,
    /// The decode worker generates.
    Decoding,
    /// One worker does both phases.
    Running,
    /// Over.
    Finished,
}

impl Phase {
    /// The word used in Python, in logs and in golden texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Resuming => "resuming",
            Self::Reserving => "reserving",
            Self::Prefilling => "prefilling",
            Self::HandedOff => "handed_off",
            Self::Decoding => "decoding",
            Self::Running => "running",
            Self::Finished => "finished",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a worker is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DownReason {
    /// Proven dead.
    Dead,
    /// The same worker came up in a new incarnation, which only happens when the old one has ended.
    Replaced,
    /// It has been silent for too long. It may come back.
    Silent,
}

impl DownReason {
    /// The word used in Python, in logs and in golden texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Replaced => "replaced",
            Self::Silent => "silent",
        }
    }
}

/// The life of a request: the phases it entered, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// In order. A request that fails over and over keeps its first phases and its newest one.
    pub entered: Vec<(Phase, Time)>,
    /// When its first output came in.
    pub first_token: Option<Time>,
}

impl Timing {
    const CAP: usize = 64;

    pub(super) fn enter(&mut self, phase: Phase, now: Time) {
        if self.entered.len() == Self::CAP {
            self.entered.pop();
        }
        self.entered.push((phase, now));
    }

    /// Nanoseconds from being handed in to the first output.
    pub fn ttft_ns(&self) -> Option<Nanos> {
        let (_, submitted) = self.entered.first()?;
        Some(self.first_token?.saturating_sub(*submitted))
    }
}
