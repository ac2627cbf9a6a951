//! Prefill side of a hand-off.
//!
//! | state | by progress of the prompt | by message | by the clock | by the destination's death |
//! |---|---|---|---|---|
//! | sending | complete blocks → StartTransfer; copied → Sent; first output → HandOff (with a verdict → stopping) | Release → blocks free; Fence, Abort → stopping | lease over: before the hand-off AttemptFailed, after it blocks free | AttemptFailed → stopping |
//! | stopping | – | Fence → FenceAck once nothing is being copied | – (a copy always ends) | no FenceAck needed |

use super::leg::Part;
use super::{Worker, WorkerAction, plan_transfer};
use crate::ids::{Attempt, Peer, RequestId, TransferId};
use crate::message::{Destination, FailReason, HandOff, Message, Prefill, Sent, TokenRange};
use crate::request::FinishReason;
use crate::scheduler::{Goal, PinId, SeededBug};
use crate::time::{Nanos, Time};
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;

/// A transfer, by its destination's name for it.
pub(super) type Key = (Peer, TransferId);

#[derive(Clone, Debug)]
pub(super) struct Outbound {
    pub attempt: Attempt,
    pub local: RequestId,
    pub destination: Destination,
    pub lease_ns: Nanos,
    pub state: State,
    /// Positions up to here are being copied or have been.
    pub issued: u32,
    /// Copies that are not over.
    pub copying: BTreeMap<u32, (TokenRange, PinId)>,
    pub next_chunk: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Sending {
        lease_until: Time,
        handed_over: bool,
    },
    /// Given up; `acknowledge`: the destination waits for the word that nothing more will be written.
    Stopping {
        acknowledge: bool,
    },
}

impl Worker {
    pub(super) fn prefill(&mut self, prefill: Prefill, now: Time) {
        let Prefill { attempt, request, destination, lease_ns } = prefill;
        let key = (destination.peer, destination.transfer);
        if !self.supersede(attempt, now) {
            return;
        }
        if self.tombstones.contains_key(&key) {
            return self.fail_attempt(attempt, FailReason::Fenced);
        }
        if !self.peers.knows(destination.peer) {
            return self.fail_attempt(attempt, FailReason::PeerLost);
        }
        if self.outbound.contains_key(&key) {
            self.stats.stale_messages += 1;
            return;
        }
        if let Err(reason) = destination.check(request.token_ids.len() as u32) {
            return self.reject(attempt, reason);
        }
        let local = self.legs.next_local();
        if !self.add(attempt, request, Goal::HandOff, Part::Outbound(key), now) {
            return;
        }
        let state = State::Sending { lease_until: now.saturating_add(lease_ns), handed_over: false };
        let issued = destination.missing.start;
        let copying = BTreeMap::new();
        let outbound = Outbound { attempt, local, destination, lease_ns, state, issued, copying, next_chunk: 0 };
        self.outbound.insert(key, outbound);
        self.renew_by(lease_ns, now);
    }

    /// Positions up to `computed` are there: what is complete and missing at the destination leaves at once.
    pub(super) fn send_computed(&mut self, key: Key, computed: u32) {
        let Some(outbound) = self.outbound.get_mut(&key) else {
            return;
        };
        if !matches!(outbound.state, State::Sending { .. }) {
            return;
        }
        let block_size = self.config.scheduler.block_size;
        let missing = outbound.destination.missing;
        // Whole blocks until the prompt ends, so that no block travels twice.
        let ready = if computed >= missing.end { missing.end } else { computed / block_size * block_size };
        let range = TokenRange { start: outbound.issued, end: ready.max(outbound.issued) };
        let (chunk, local) = (outbound.next_chunk, outbound.local);
        // A request that ended with its first output has no blocks any more, and nobody wants them.
        let Some(blocks) = self.scheduler.blocks(local).filter(|_| !range.is_empty()) else {
            return;
        };
        outbound.issued = range.end;
        outbound.next_chunk += 1;
        let Destination { blocks: to, block_size: to_size, .. } = &outbound.destination;
        let mut runs = plan_transfer((blocks, block_size), (to, *to_size), range);
        if self.scheduler.has_bug(SeededBug::TailOffByOne)
            && let Some(last) = runs.last_mut()
            && range.end == missing.end
        {
            last.num_tokens -= 1;
        }
        self.next_pin += 1;
        outbound.copying.insert(chunk, (range, self.next_pin));
        self.scheduler.pin(local, self.next_pin);
        let (peer, transfer) = key;
        self.actions.push_back(WorkerAction::StartTransfer { peer, transfer, chunk, runs });
    }

    /// The host copied a chunk, or gave it up; either way it writes no more of it.
    pub(super) fn copied(&mut self, key: Key, chunk: u32, ok: bool, now: Time) {
        let Some(outbound) = self.outbound.get_mut(&key) else {
            self.stats.unknown_subjects += 1;
            return;
        };
        let Some((range, pin)) = outbound.copying.remove(&chunk) else {
            self.stats.unknown_subjects += 1;
            return;
        };
        let (attempt, local) = (outbound.attempt, outbound.local);
        self.scheduler.unpin(local, pin);
        match (self.outbound[&key].state, ok) {
            (State::Sending { .. }, true) => {
                let sent = Sent { attempt, transfer: key.1, range };
                self.tell_peer(key.0, Message::Sent(sent));
            }
            (State::Sending { .. }, false) => {
                self.stop_sending(key, false, now);
                self.fail_attempt(attempt, FailReason::TransferFailed);
            }
            (State::Stopping { .. }, _) => self.finish_stopping(key),
        }
    }

    /// The first output is there, and with it the hand-off.
    pub(super) fn hand_over(&mut self, key: Key, index: u32, token_id: u32, finish: Option<FinishReason>, now: Time) {
        let Some(outbound) = self.outbound.get_mut(&key) else {
            return;
        };
        let attempt = outbound.attempt;
        if let State::Sending { handed_over, .. } = &mut outbound.state {
            *handed_over = true;
        }
        let body = HandOff { attempt, transfer: key.1, index, token_id, extra: ByteBuf::new(), finish };
        self.tell_peer(key.0, Message::HandOff(body));
        if finish.is_some() {
            self.stop_sending(key, true, now);
        }
    }

    pub(super) fn released(&mut self, key: Key, now: Time) {
        match self.outbound.get(&key) {
            Some(Outbound { local, state: State::Sending { handed_over: true, .. }, .. }) => {
                self.scheduler.release(*local, now);
                self.legs.remove(*local);
                self.outbound.remove(&key);
                self.stats.hand_offs_out += 1;
            }
            _ => self.stats.unknown_subjects += 1,
        }
    }

    /// The destination wants no more, and the word that none will come, also if we never heard of it.
    pub(super) fn fenced(&mut self, key: Key, now: Time) {
        if self.outbound.contains_key(&key) {
            self.stop_sending(key, true, now);
        } else {
            self.tombstones.insert(key, now.saturating_add(self.config.tombstone_ns));
            self.tell_peer(key.0, Message::FenceAck(key.1));
        }
    }

    /// Gives a transfer up: the request ends here, copies are cancelled, the rest follows when they are over.
    pub(super) fn stop_sending(&mut self, key: Key, acknowledge: bool, now: Time) {
        let Some(outbound) = self.outbound.get_mut(&key) else {
            return;
        };
        let acknowledge = acknowledge || outbound.state == State::Stopping { acknowledge: true };
        let first_time = matches!(outbound.state, State::Sending { .. });
        outbound.state = State::Stopping { acknowledge };
        let (local, copying) = (outbound.local, !outbound.copying.is_empty());
        if first_time {
            self.legs.remove(local);
            if self.scheduler.tokens(local).is_some() {
                self.scheduler.abort(local, now);
            }
            if copying {
                self.actions.push_back(WorkerAction::CancelTransfer { peer: key.0, transfer: key.1 });
            }
        }
        self.finish_stopping(key);
    }

    fn finish_stopping(&mut self, key: Key) {
        let Some(Outbound { state: State::Stopping { acknowledge }, copying, .. }) = self.outbound.get(&key) else {
            return;
        };
        if !copying.is_empty() {
            return;
        }
        if *acknowledge {
            self.tell_peer(key.0, Message::FenceAck(key.1));
        }
        self.outbound.remove(&key);
    }

    pub(super) fn destination_dead(&mut self, peer: Peer, now: Time) {
        let to_peer = self.outbound.range((peer, TransferId(0))..=(peer, TransferId(u64::MAX)));
        for key in to_peer.map(|(&key, _)| key).collect::<Vec<_>>() {
            let outbound = &self.outbound[&key];
            let (attempt, sending) = (outbound.attempt, matches!(outbound.state, State::Sending { .. }));
            self.stop_sending(key, false, now);
            if sending {
                self.fail_attempt(attempt, FailReason::PeerLost);
            }
        }
    }

    /// What the clock does to transfers.
    pub(super) fn outbound_timeouts(&mut self, now: Time) {
        for key in self.outbound.keys().copied().collect::<Vec<_>>() {
            let Outbound { attempt, state, .. } = self.outbound[&key];
            let State::Sending { lease_until, handed_over } = state else {
                continue;
            };
            if now < lease_until {
                continue;
            }
            self.stop_sending(key, false, now);
            if !handed_over {
                self.stats.leases_expired += 1;
                self.fail_attempt(attempt, FailReason::LeaseExpired);
            }
        }
    }
}
