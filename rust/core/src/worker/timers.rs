//! Everything that happens by the clock: Hello, Load, renewals, leases, fences, a silent cluster.

use super::Worker;
use super::inbound::Inbound;
use super::outbound::{Outbound, State};
use crate::ids::{Peer, TransferId};
use crate::message::{Hello, Message};
use crate::time::{Nanos, Time, earlier};
use std::collections::BTreeMap;

impl Worker {
    /// When something is due by the clock alone: an absolute time, or `None` when only an event can help.
    pub fn poll_timeout(&self) -> Option<Time> {
        let inbound = self.inbound.values().map(Inbound::deadline).min();
        let outbound = self.outbound.values().filter_map(Outbound::deadline).min();
        let silence = self
            .cluster
            .welcomed
            .as_ref()
            .map(|welcome| self.cluster.heard_at.saturating_add(welcome.cluster_silence_ns));
        let leases = earlier(inbound, outbound);
        earlier(earlier(leases, self.renew_at), earlier(silence, Some(self.cluster.speak_at)))
    }

    /// Does what is due. Calling it early, late or twice is harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        self.watch_cluster(now);
        self.inbound_timeouts(now);
        self.outbound_timeouts(now);
        self.tombstones.retain(|_, until| now < *until);
        if self.renew_at.is_some_and(|at| now >= at) {
            self.renew(now);
        }
        if now >= self.cluster.speak_at {
            self.speak(now);
        }
    }

    /// A cluster that says nothing for too long is dead to us.
    fn watch_cluster(&mut self, now: Time) {
        let Some(welcome) = &self.cluster.welcomed else { return };
        if now >= self.cluster.heard_at.saturating_add(welcome.cluster_silence_ns) {
            self.introduce_again(now);
        }
    }

    /// Gives up everything and says so.
    pub(super) fn introduce_again(&mut self, now: Time) {
        self.cluster.welcomed = None;
        self.cluster.speak_at = now;
        self.cluster.generation += 1;
        self.abandon_all(now);
    }

    fn speak(&mut self, now: Time) {
        match &self.cluster.welcomed {
            Some(welcome) => {
                self.cluster.speak_at = now.saturating_add(welcome.heartbeat_ns);
                let load = self.load();
                self.tell_cluster(Message::Load(load));
            }
            None => {
                self.cluster.speak_at = now.saturating_add(self.config.hello_ns);
                let scheduler = &self.config.scheduler;
                let hello = Hello {
                    role: self.config.role,
                    fingerprint: self.config.fingerprint.clone(),
                    block_size: scheduler.block_size,
                    num_blocks: scheduler.usable_blocks(),
                    generation: self.cluster.generation,
                    max_model_len: scheduler.max_len(),
                    max_num_seqs: scheduler.max_num_seqs,
                    address: self.config.address.clone(),
                };
                self.tell_cluster(Message::Hello(hello));
            }
        }
    }

    /// A lease began: both its ends speak up at a third of it.
    pub(super) fn renew_by(&mut self, lease_ns: Nanos, now: Time) {
        self.renew_at = earlier(self.renew_at, Some(now.saturating_add(lease_ns / 3)));
    }

    /// Tells every peer which of its transfers we still mean.
    fn renew(&mut self, now: Time) {
        let mut by_peer: BTreeMap<Peer, Vec<TransferId>> = BTreeMap::new();
        let mut shortest: Option<Nanos> = None;
        for (&transfer, inbound) in self.inbound.iter().filter(|(_, inbound)| !inbound.is_quarantined()) {
            by_peer.entry(inbound.source).or_default().push(transfer);
            shortest = earlier(shortest, Some(inbound.lease_ns));
        }
        let mut outbound_by_peer: BTreeMap<Peer, Vec<TransferId>> = BTreeMap::new();
        for (&(peer, transfer), outbound) in &self.outbound {
            if matches!(outbound.state, State::Sending { .. }) {
                outbound_by_peer.entry(peer).or_default().push(transfer);
                shortest = earlier(shortest, Some(outbound.lease_ns));
            }
        }
        self.renew_at = shortest.map(|lease_ns| now.saturating_add(lease_ns / 3));
        for (peer, transfers) in by_peer {
            self.tell_peer(peer, Message::RenewIn(transfers));
        }
        for (peer, transfers) in outbound_by_peer {
            self.tell_peer(peer, Message::RenewOut(transfers));
        }
    }

    /// The source of these reservations means them still.
    pub(super) fn renewed_by_source(&mut self, source: Peer, transfers: &[TransferId], now: Time) {
        for transfer in transfers {
            match self.inbound.get_mut(transfer) {
                Some(inbound) if inbound.source == source => inbound.renew(now),
                _ => self.stats.unknown_subjects += 1,
            }
        }
    }

    /// The destination of these transfers means them still.
    pub(super) fn renewed_by_destination(&mut self, destination: Peer, transfers: &[TransferId], now: Time) {
        for &transfer in transfers {
            match self.outbound.get_mut(&(destination, transfer)) {
                Some(outbound) => outbound.renew(now),
                None => self.stats.unknown_subjects += 1,
            }
        }
    }
}

impl Inbound {
    fn renew(&mut self, now: Time) {
        if let super::inbound::State::Receiving { lease_until, .. } = &mut self.state {
            *lease_until = now.saturating_add(self.lease_ns);
        }
    }
}

impl Outbound {
    fn renew(&mut self, now: Time) {
        if let State::Sending { lease_until, .. } = &mut self.state {
            *lease_until = now.saturating_add(self.lease_ns);
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self.state {
            State::Sending { lease_until, .. } => Some(lease_until),
            State::Stopping { .. } => None,
        }
    }
}
