//! Which messages are accepted, and where they go. Whatever is late, repeated, foreign or unknown ends here, counted.

use super::Cluster;
use super::registry::{Health, Unaccepted};
use crate::balance::Report;
use crate::ids::Peer;
use crate::message::{Envelope, Load, Message, Party};
use crate::time::Time;

impl Cluster {
    pub(super) fn receive(&mut self, envelope: Envelope, now: Time) {
        let Envelope { from, epoch, seq, body, .. } = envelope;
        let Party::Worker(peer) = from else {
            self.stats.unexpected += 1;
            return;
        };
        if let Message::Hello(hello) = body {
            self.hello(peer, seq, hello, now); // knows no epoch yet
            return;
        }
        let lost = match self.registry.accept(peer, seq) {
            Ok(lost) => lost,
            Err(Unaccepted::Unknown) => return self.stats.unknown_peer += 1,
            Err(Unaccepted::DeadIncarnation) => return self.stats.dead_incarnation += 1,
            Err(Unaccepted::Duplicate) => return self.stats.duplicate_messages += 1,
        };
        if epoch != self.config.epoch {
            return self.stats.foreign_epoch += 1;
        }
        self.heard(peer, now);
        if lost > 0 {
            // Whatever they said about its requests, it will not say again.
            self.stats.lost_messages += lost;
            self.fail_all_on(peer, "messages of its worker were lost", None, now);
        }
        self.dispatch(peer, seq, body, now);
    }

    fn heard(&mut self, peer: Peer, now: Time) {
        let worker = self.registry.current_mut(peer).expect("an accepted message has a sender");
        worker.last_heard = now;
        if worker.health != Health::Up {
            self.revive(peer, now);
        }
    }

    fn dispatch(&mut self, from: Peer, seq: u64, body: Message, now: Time) {
        match body {
            Message::StepReport(report) => self.step_report(from, report, now),
            Message::Load(load) => self.load_report(from, seq, load, now),
            Message::Reserved(reserved) => self.reserved(from, reserved, now),
            Message::ReserveRefused(refused) => self.reserve_refused(from, refused.attempt, now),
            Message::Rejected(rejected) => self.rejected(from, rejected, now),
            Message::AttemptFailed(failed) => self.attempt_failed(from, failed, now),
            // Named one by one, so that a new message cannot be forgotten here.
            Message::Hello(_)
            | Message::Welcome(_)
            | Message::PeerUp(_)
            | Message::PeerDead(_)
            | Message::Heartbeat
            | Message::Reserve(_)
            | Message::Prefill(_)
            | Message::Decode(_)
            | Message::Abort(_)
            | Message::Sent(_)
            | Message::HandOff(_)
            | Message::FenceAck(_)
            | Message::RenewOut(_)
            | Message::RenewIn(_)
            | Message::Release(_)
            | Message::Fence(_) => self.stats.unexpected += 1,
        }
    }

    fn load_report(&mut self, from: Peer, seq: u64, load: Load, now: Time) {
        let silence = self.config.cluster_silence_ns;
        let worker = self.registry.current_mut(from).expect("an accepted message has a sender");
        if load.acked_seq > worker.sent_seq {
            return self.stats.malformed += 1;
        }
        let report = Report {
            seq,
            acked_seq: load.acked_seq,
            used_tokens: u64::from(load.used_blocks) * u64::from(worker.hello.block_size),
            prefill_tokens: load.prefill_tokens,
        };
        if let Some(at) = worker.refused_until.take() {
            self.timers.disarm(at, super::Timer::Retry(from.worker)); // its own word is newer than its refusal
        }
        let quiet = now.saturating_sub(worker.last_sent) >= silence / 4;
        self.balancer.report(from.worker, report);
        self.may_place = true;
        if quiet {
            self.send(from, Message::Heartbeat, now);
        }
    }
}
