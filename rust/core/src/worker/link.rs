//! Envelopes: who may speak, in which order, for which life. The only place that makes or judges one.

use super::{Worker, WorkerAction};
use crate::ids::{Epoch, Incarnation, Peer, WorkerId};
use crate::message::{Envelope, Message, Party, Welcome};
use crate::time::Time;
use std::collections::BTreeMap;

/// The connection to the cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterLink {
    pub epoch: Epoch,
    seq_out: u64,
    seq_in: u64,
    /// Times this worker has given up everything.
    pub generation: u32,
    pub heard_at: Time,
    pub welcomed: Option<Welcome>,
    /// Next Hello (while not welcomed) or Load (once welcomed).
    pub speak_at: Time,
}

impl ClusterLink {
    pub fn seq_in(&self) -> u64 {
        self.seq_in
    }

    pub fn welcome(&mut self, welcome: Welcome, now: Time) {
        self.speak_at = now;
        self.welcomed = Some(welcome);
    }
}

#[derive(Debug)]
struct PeerLink {
    incarnation: Incarnation,
    seq_out: u64,
    seq_in: u64,
}

/// Connections to other workers, each in one life.
#[derive(Debug, Default)]
pub(super) struct PeerLinks {
    links: BTreeMap<WorkerId, PeerLink>,
}

impl PeerLinks {
    /// A peer joined, or is named again.
    pub fn join(&mut self, peer: Peer) {
        if !self.knows(peer) {
            self.links.insert(peer.worker, PeerLink { incarnation: peer.incarnation, seq_out: 0, seq_in: 0 });
        }
    }

    /// The life of a worker that is known here.
    pub fn current(&self, worker: WorkerId) -> Option<Peer> {
        self.links.get(&worker).map(|link| Peer { worker, incarnation: link.incarnation })
    }

    /// A peer is gone. False if this life of it was not known.
    pub fn leave(&mut self, peer: Peer) -> bool {
        self.knows(peer) && self.links.remove(&peer.worker).is_some()
    }

    pub fn knows(&self, peer: Peer) -> bool {
        self.links.get(&peer.worker).is_some_and(|link| link.incarnation == peer.incarnation)
    }
}

impl Worker {
    /// Whether a message is for us, now, and not a repetition.
    pub(super) fn admit(&mut self, envelope: &Envelope, now: Time) -> bool {
        if envelope.to != self.config.me.incarnation {
            self.stats.foreign_messages += 1;
            return false;
        }
        match envelope.from {
            Party::Cluster => self.admit_cluster(envelope, now),
            Party::Worker(peer) => self.admit_peer(peer, envelope, now),
        }
    }

    fn admit_cluster(&mut self, envelope: &Envelope, now: Time) -> bool {
        let welcome = matches!(envelope.body, Message::Welcome(_));
        if welcome && envelope.epoch > self.cluster.epoch {
            // A new cluster knows nothing of what the old one wanted.
            self.abandon_all(now);
            self.cluster.epoch = envelope.epoch;
            self.cluster.seq_in = 0;
        }
        if envelope.epoch != self.cluster.epoch || (self.cluster.welcomed.is_none() && !welcome) {
            self.stats.foreign_messages += 1;
            return false;
        }
        if envelope.seq <= self.cluster.seq_in {
            self.stats.stale_messages += 1;
            return false;
        }
        let lost = envelope.seq - self.cluster.seq_in > 1;
        self.cluster.seq_in = envelope.seq;
        self.cluster.heard_at = now;
        if lost && !welcome {
            // What the cluster believes of us is not so: we begin again.
            self.stats.lost_messages += 1;
            self.introduce_again(now);
            return false;
        }
        true
    }

    fn admit_peer(&mut self, peer: Peer, envelope: &Envelope, now: Time) -> bool {
        let link = self.peers.links.get_mut(&peer.worker).filter(|link| link.incarnation == peer.incarnation);
        let Some(link) = link.filter(|_| envelope.epoch == self.cluster.epoch) else {
            self.stats.foreign_messages += 1;
            return false;
        };
        if envelope.seq <= link.seq_in {
            self.stats.stale_messages += 1;
            return false;
        }
        let lost = envelope.seq - link.seq_in > 1;
        link.seq_in = envelope.seq;
        if lost {
            self.stats.lost_messages += 1;
            self.distrust(peer, now);
        }
        true
    }

    pub(super) fn tell_cluster(&mut self, body: Message) {
        self.cluster.seq_out += 1;
        let seq = self.cluster.seq_out;
        self.send(Party::Cluster, Incarnation(0), seq, body);
    }

    pub(super) fn tell_peer(&mut self, peer: Peer, body: Message) {
        let Some(link) = self.peers.links.get_mut(&peer.worker).filter(|link| link.incarnation == peer.incarnation)
        else {
            return; // it left; nobody is there to hear it
        };
        link.seq_out += 1;
        let seq = link.seq_out;
        self.send(Party::Worker(peer), peer.incarnation, seq, body);
    }

    fn send(&mut self, to: Party, incarnation: Incarnation, seq: u64, body: Message) {
        let from = Party::Worker(self.config.me);
        let message = Envelope { from, to: incarnation, epoch: self.cluster.epoch, seq, body };
        self.actions.push_back(WorkerAction::Send { to, message });
    }
}
