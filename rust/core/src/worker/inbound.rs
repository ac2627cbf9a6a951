//! Decode side of a hand-off.
//!
//! | state | by message | by the clock | by the source's death |
//! |---|---|---|---|
//! | receiving | Sent, HandOff: complete when all is here → Release, decode; HandOff with a verdict, Abort → quarantine; a gap in what the source says → AttemptFailed, quarantine | lease over → Fence, AttemptFailed, quarantine | AttemptFailed, blocks free |
//! | quarantine | FenceAck → blocks free | Fence again; then Kill; after several in vain the blocks are retired | blocks free |
//!
//! Expiry never frees a block that the source may still write.

use super::leg::{Leg, Part};
use super::{Worker, WorkerAction};
use crate::ids::{Attempt, Peer, RequestId, TransferId};
use crate::message::{
    AttemptFailed, Destination, FailReason, HandOff, Message, Reserve, ReserveRefused, Reserved, Sent, StepReport,
};
use crate::scheduler::{Arrival, PinId, ReserveError};
use crate::time::{Nanos, Time};

/// Times a writer is asked to be killed before its blocks are given up.
const MAX_KILLS: u32 = 3;

/// A reservation, or what is left of one.
#[derive(Clone, Debug)]
pub(super) struct Inbound {
    pub attempt: Attempt,
    pub local: RequestId,
    pub source: Peer,
    pub pin: PinId,
    pub lease_ns: Nanos,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// KV may arrive.
    Receiving { lease_until: Time, first_token: Option<u32> },
    /// Nobody wants it any more, but the source may still write.
    Quarantined { ask_at: Time, kill_at: Time, kills: u32 },
}

impl Worker {
    /// Makes room, or says why not.
    pub(super) fn reserve(&mut self, reserve: Reserve, now: Time) {
        let Reserve { attempt, mut request, source, lease_ns } = reserve;
        if !self.supersede(attempt, now) {
            return;
        }
        if !self.peers.knows(source) {
            return self.fail_attempt(attempt, FailReason::PeerLost);
        }
        let next_index = request.num_known_outputs();
        request.id = self.legs.next_local();
        let reservation = match self.scheduler.reserve(request, now) {
            Ok(reservation) => reservation,
            Err(ReserveError::NoSpace { needed, free }) => {
                let refused = ReserveRefused { attempt, free_blocks: free, needed_blocks: needed };
                return self.tell_cluster(Message::ReserveRefused(refused));
            }
            Err(ReserveError::Invalid(error)) => return self.reject(attempt, error.to_string()),
        };
        self.next_transfer += 1;
        let (transfer, pin) = (TransferId(self.next_transfer), self.fresh_pin());
        let local = self.legs.insert(Leg { attempt, part: Part::Inbound(transfer), next_index });
        self.scheduler.pin(local, pin);
        let state = State::Receiving { lease_until: now.saturating_add(lease_ns), first_token: None };
        self.inbound.insert(transfer, Inbound { attempt, local, source, pin, lease_ns, state });
        self.renew_by(lease_ns, now);
        let destination = Destination {
            peer: self.config.me,
            transfer,
            missing: reservation.missing,
            blocks: reservation.blocks,
            block_size: self.config.scheduler.block_size,
        };
        self.tell_cluster(Message::Reserved(Reserved { attempt, destination }));
    }

    /// The reservation that a source speaks of, its lease renewed. `None` (counted) when it is not its to speak of.
    fn receiving(&mut self, source: Peer, transfer: TransferId, now: Time) -> Option<RequestId> {
        match self.inbound.get_mut(&transfer) {
            Some(Inbound { source: known, local, lease_ns, state: State::Receiving { lease_until, .. }, .. })
                if *known == source =>
            {
                *lease_until = now.saturating_add(*lease_ns);
                Some(*local)
            }
            _ => {
                self.stats.unknown_subjects += 1;
                None
            }
        }
    }

    pub(super) fn arrived(&mut self, source: Peer, sent: Sent, now: Time) {
        if let Some(local) = self.receiving(source, sent.transfer, now) {
            let arrival = self.scheduler.arrived(local, sent.range, now);
            self.settle(sent.transfer, arrival);
        }
    }

    pub(super) fn handed_over(&mut self, source: Peer, hand_off: HandOff, now: Time) {
        let transfer = hand_off.transfer;
        let Some(local) = self.receiving(source, transfer, now) else {
            return;
        };
        if hand_off.finish.is_some() {
            // The source says so itself once its last copy is over.
            return self.withdraw(transfer, now);
        }
        if let Some(Inbound { state: State::Receiving { first_token, .. }, .. }) = self.inbound.get_mut(&transfer) {
            *first_token = Some(hand_off.token_id);
        }
        let arrival = self.scheduler.hand_over(local, hand_off.token_id, now);
        self.settle(transfer, arrival);
    }

    /// With everything here, the source is let go and this worker generates.
    fn settle(&mut self, transfer: TransferId, arrival: Arrival) {
        if arrival != Arrival::Complete {
            return;
        }
        let Some(inbound) = self.inbound.remove(&transfer) else {
            return;
        };
        self.scheduler.unpin(inbound.local, inbound.pin);
        self.tell_peer(inbound.source, Message::Release(transfer));
        self.stats.hand_offs_in += 1;
        let mut report = StepReport { activated: vec![inbound.attempt], ..StepReport::default() };
        if let (Some(leg), State::Receiving { first_token: Some(token), .. }) =
            (self.legs.get_mut(inbound.local), inbound.state)
        {
            leg.part = Part::Run;
            report.attempts.push(leg.attempt);
            report.first_index.push(leg.next_index);
            report.counts.push(1);
            report.token_ids.push(token);
            leg.next_index += 1;
        }
        self.report_ends(&mut report);
        self.tell_cluster(Message::StepReport(report));
    }

    /// Nobody wants the reservation any more: its blocks wait for the source's word, which is asked for.
    pub(super) fn quarantine(&mut self, transfer: TransferId, now: Time) {
        self.withdraw(transfer, now);
        if let Some(Inbound { source, .. }) = self.inbound.get(&transfer) {
            self.tell_peer(*source, Message::Fence(transfer));
        }
    }

    fn withdraw(&mut self, transfer: TransferId, now: Time) {
        let Some(inbound) = self.inbound.get_mut(&transfer) else {
            return;
        };
        let Inbound { local, lease_ns, .. } = *inbound;
        let kill_at = now.saturating_add(self.config.kill_after_ns);
        inbound.state = State::Quarantined { ask_at: now.saturating_add(lease_ns), kill_at, kills: 0 };
        self.legs.remove(local);
        self.scheduler.abort(local, now);
    }

    /// The source will never write again.
    pub(super) fn fence_acknowledged(&mut self, source: Peer, transfer: TransferId) {
        match self.inbound.get(&transfer) {
            Some(inbound) if inbound.source == source && inbound.is_quarantined() => self.lift(transfer),
            _ => self.stats.unknown_subjects += 1,
        }
    }

    fn lift(&mut self, transfer: TransferId) {
        if let Some(inbound) = self.inbound.remove(&transfer) {
            self.scheduler.unpin(inbound.local, inbound.pin);
        }
    }

    pub(super) fn source_dead(&mut self, peer: Peer, now: Time) {
        let of_peer = self.inbound.iter().filter(|(_, inbound)| inbound.source == peer);
        for transfer in of_peer.map(|(&transfer, _)| transfer).collect::<Vec<_>>() {
            let inbound = &self.inbound[&transfer];
            let (attempt, receiving) = (inbound.attempt, !inbound.is_quarantined());
            if receiving {
                self.legs.remove(inbound.local);
                self.scheduler.abort(inbound.local, now);
                self.fail_attempt(attempt, FailReason::PeerLost);
            }
            self.lift(transfer);
        }
    }

    /// Something that a source said is lost. It may have been an arrival or the hand-off, which nothing brings again
    /// although both sides are alive and renew their leases: what it still had to send here begins anew.
    pub(super) fn distrust(&mut self, source: Peer, now: Time) {
        let receiving = |inbound: &Inbound| inbound.source == source && !inbound.is_quarantined();
        let of_source = self.inbound.iter().filter(|(_, inbound)| receiving(inbound));
        for transfer in of_source.map(|(&transfer, _)| transfer).collect::<Vec<_>>() {
            let attempt = self.inbound[&transfer].attempt;
            self.quarantine(transfer, now);
            self.fail_attempt(attempt, FailReason::TransferFailed);
        }
    }

    /// What the clock does to reservations.
    pub(super) fn inbound_timeouts(&mut self, now: Time) {
        for transfer in self.inbound.keys().copied().collect::<Vec<_>>() {
            let inbound = &self.inbound[&transfer];
            let Inbound { attempt, source, .. } = *inbound;
            match inbound.state {
                State::Receiving { lease_until, .. } if now >= lease_until => {
                    self.stats.leases_expired += 1;
                    self.quarantine(transfer, now);
                    self.fail_attempt(attempt, FailReason::LeaseExpired);
                }
                State::Quarantined { kill_at, kills, .. } if now >= kill_at => {
                    if kills == MAX_KILLS {
                        self.retire(transfer);
                    } else {
                        self.postpone(transfer, now);
                        self.actions.push_back(WorkerAction::Kill(source));
                    }
                }
                State::Quarantined { ask_at, .. } if now >= ask_at => {
                    self.postpone(transfer, now);
                    self.tell_peer(source, Message::Fence(transfer));
                }
                _ => {}
            }
        }
    }

    /// Sets the next moment a quarantine asks again.
    fn postpone(&mut self, transfer: TransferId, now: Time) {
        let kill_after = self.config.kill_after_ns;
        let Some(inbound) = self.inbound.get_mut(&transfer) else { return };
        if let State::Quarantined { ask_at, kill_at, kills } = &mut inbound.state {
            *ask_at = now.saturating_add(inbound.lease_ns);
            if now >= *kill_at {
                *kill_at = now.saturating_add(kill_after);
                *kills += 1;
            }
        }
    }

    /// Nobody can prove that the source writes no more: its blocks are never handed out again.
    fn retire(&mut self, transfer: TransferId) {
        if let Some(inbound) = self.inbound.remove(&transfer) {
            self.stats.retired_blocks += u64::from(self.scheduler.retire(inbound.pin));
        }
    }

    pub(super) fn fail_attempt(&mut self, attempt: Attempt, reason: FailReason) {
        self.tell_cluster(Message::AttemptFailed(AttemptFailed { attempt, reason }));
    }
}

impl Inbound {
    pub fn is_quarantined(&self) -> bool {
        matches!(self.state, State::Quarantined { .. })
    }

    pub fn deadline(&self) -> Time {
        match self.state {
            State::Receiving { lease_until, .. } => lease_until,
            State::Quarantined { ask_at, kill_at, .. } => ask_at.min(kill_at),
        }
    }
}
