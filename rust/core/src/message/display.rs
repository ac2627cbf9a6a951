//! Messages as one line of text, for logs and golden tests.

use super::{Destination, Envelope, Message, Party, StepReport, TokenRange};
use crate::request::Request;
use crate::time::{MILLISECOND, Nanos};
use std::fmt::{self, Display, Formatter};

impl Display for Party {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("cluster"),
            Self::Worker(peer) => peer.fmt(f),
        }
    }
}

impl Display for TokenRange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl Display for Envelope {
    /// Sender, number and body. The incarnation and the epoch are left out.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{} {}", self.from, self.seq, self.body)
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello(m) => {
                let (role, blocks, size, len) = (m.role.as_str(), m.num_blocks, m.block_size, m.max_model_len);
                write!(f, "hello {role} {:?} blocks={blocks}x{size} max_model_len={len}", m.fingerprint)
            }
            Self::Reserved(m) => write!(f, "reserved {} {}", m.attempt, Place(&m.destination)),
            Self::ReserveRefused(m) => {
                write!(f, "reserve_refused {} free={} needed={}", m.attempt, m.free_blocks, m.needed_blocks)
            }
            Self::Rejected(m) => write!(f, "rejected {} {}", m.attempt, m.reason),
            Self::StepReport(m) => m.fmt(f),
            Self::AttemptFailed(m) => write!(f, "attempt_failed {} {}", m.attempt, m.reason.as_str()),
            Self::Load(m) => write!(
                f,
                "load acked={} used={} free={} running={} waiting={} prefill={} kv={}",
                m.acked_seq, m.used_blocks, m.free_blocks, m.running, m.waiting, m.prefill_tokens, m.kv_tokens
            ),
            Self::Welcome(_) => f.write_str("welcome"),
            Self::PeerUp(m) => write!(f, "peer_up {}", m.peer),
            Self::PeerDead(peer) => write!(f, "peer_dead {peer}"),
            Self::Reserve(m) => {
                write!(f, "reserve {} {} source={} {}", m.attempt, Body(&m.request), m.source, Lease(m.lease_ns))
            }
            Self::Prefill(m) => {
                let (body, place) = (Body(&m.request), Place(&m.destination));
                write!(f, "prefill {} {body} {place} {}", m.attempt, Lease(m.lease_ns))
            }
            Self::Decode(m) => write!(f, "decode {} {}", m.attempt, Body(&m.request)),
            Self::Abort(attempt) => write!(f, "abort {attempt}"),
            Self::Heartbeat => f.write_str("heartbeat"),
            Self::Sent(m) => write!(f, "sent {} transfer={} range={}", m.attempt, m.transfer, m.range),
            Self::HandOff(m) => {
                write!(f, "hand_off {} transfer={} token={}@{}", m.attempt, m.transfer, m.token_id, m.index)?;
                m.finish.map_or(Ok(()), |reason| write!(f, " finish={reason}"))
            }
            Self::FenceAck(transfer) => write!(f, "fence_ack {transfer}"),
            Self::RenewOut(transfers) => list(f, "renew_out", transfers),
            Self::RenewIn(transfers) => list(f, "renew_in", transfers),
            Self::Release(transfer) => write!(f, "release {transfer}"),
            Self::Fence(transfer) => write!(f, "fence {transfer}"),
        }
    }
}

impl Display for StepReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("step_report")?;
        for (attempt, computed) in &self.progress {
            write!(f, " progress={attempt}:{computed}")?;
        }
        for attempt in &self.activated {
            write!(f, " activated={attempt}")?;
        }
        let mut tokens = self.token_ids.iter();
        for ((attempt, first), count) in self.attempts.iter().zip(&self.first_index).zip(&self.counts) {
            let mine: Vec<_> = tokens.by_ref().take(*count as usize).collect();
            write!(f, " {attempt}@{first}={mine:?}")?;
        }
        for end in &self.ends {
            write!(f, " end={}:{}", end.attempt, end.reason)?;
        }
        Ok(())
    }
}

fn list(f: &mut Formatter<'_>, name: &str, items: &[impl Display]) -> fmt::Result {
    f.write_str(name)?;
    items.iter().try_for_each(|item| write!(f, " {item}"))
}

/// What matters of a request in a log: how long it is, not what it says.
struct Body<'a>(&'a Request);

impl Display for Body<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Request { prompt_len, max_tokens, .. } = self.0;
        write!(f, "prompt={prompt_len} known={} max_tokens={max_tokens}", self.0.num_known_outputs())
    }
}

struct Place<'a>(&'a Destination);

impl Display for Place<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Destination { peer, transfer, missing, blocks, block_size } = self.0;
        write!(f, "to={peer} transfer={transfer} missing={missing} blocks={}x{block_size}", blocks.len())
    }
}

struct Lease(Nanos);

impl Display for Lease {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "lease={}ms", self.0 / MILLISECOND)
    }
}
