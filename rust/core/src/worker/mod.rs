//! A worker: a [`Scheduler`], its KV transfers and its leases.
//!
//! The host (a process, a thread, a simulator, a test) runs steps, copies bytes, carries messages and calls back; what
//! is decided is decided here. The loop is the same everywhere:
//!
//! ```text
//! handle(event, now)*  →  poll_action()* until None  →  schedule(now) → run → complete(step, tokens, now)
//!                         nothing to run: sleep until an event comes or poll_timeout(), then handle_timeout(now)
//! ```
//!
//! | file | concern |
//! |---|---|
//! | `config`, `event` | what a worker is told; what it hears and asks for |
//! | `link` | envelopes: who may speak, in which order, for which life |
//! | `leg` | a request's part on this worker, by attempt and by local id |
//! | `inbound` | decode side: reservations, arrivals, leases, fences, quarantine |
//! | `outbound` | prefill side: sendable ranges, copies, hand-off, release |
//! | `transfer` | which tokens of which block go where |
//! | `steps` | schedule, complete, fail; reports |
//! | `timers` | everything that happens by the clock |

mod check;
mod config;
mod event;
mod inbound;
mod leg;
mod link;
mod outbound;
mod steps;
mod timers;
mod transfer;

pub use config::WorkerConfig;
pub use event::{WorkerAction, WorkerEvent};
pub use transfer::{Run, plan_transfer};

use crate::ids::{Attempt, Peer, TransferId};
use crate::message::{Envelope, Load, Message, Party, Rejected};
use crate::scheduler::{ConfigError, Goal, PinId, Scheduler};
use crate::time::Time;
use inbound::Inbound;
use leg::{Leg, Legs, Part};
use link::{ClusterLink, PeerLinks};
use outbound::{Key, Outbound};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Messages from a life that is over, of another epoch, or from nobody known.
    pub foreign_messages: u64,
    /// Messages that came again, or after a newer one.
    pub stale_messages: u64,
    /// Gaps in what the cluster or a peer said.
    pub lost_messages: u64,
    /// Messages about attempts or transfers that are not here.
    pub unknown_subjects: u64,
    /// Reservations whose source fell silent.
    pub leases_expired: u64,
    /// Hand-offs received whole.
    pub hand_offs_in: u64,
    /// Hand-offs released by their destination.
    pub hand_offs_out: u64,
    /// Blocks given up because their writer could be proven neither silent nor dead.
    pub retired_blocks: u64,
    /// Steps the runner failed.
    pub failed_steps: u64,
}

/// One worker's state machine. See the [module](self) for the loop that drives it.
pub struct Worker {
    config: WorkerConfig,
    scheduler: Scheduler,
    cluster: ClusterLink,
    peers: PeerLinks,
    legs: Legs,
    /// Reservations here, by our own transfer ids; in quarantine until their source cannot write any more.
    inbound: BTreeMap<TransferId, Inbound>,
    /// Transfers into other workers' reservations.
    outbound: BTreeMap<Key, Outbound>,
    /// Transfers fenced before we heard of them, until when they are remembered.
    tombstones: BTreeMap<Key, Time>,
    actions: VecDeque<WorkerAction>,
    next_transfer: u64,
    next_pin: PinId,
    renew_at: Option<Time>,
    /// Failed steps in a row.
    failures: u32,
    stats: WorkerStats,
}

impl Worker {
    /// A worker that knows nobody yet. It says Hello when its clock first runs: call
    /// [`handle_timeout`](Self::handle_timeout) once at the start.
    pub fn new(config: WorkerConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            scheduler: Scheduler::new(config.scheduler.clone())?,
            cluster: ClusterLink::default(),
            peers: PeerLinks::default(),
            legs: Legs::default(),
            inbound: BTreeMap::new(),
            outbound: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            actions: VecDeque::new(),
            next_transfer: 0,
            next_pin: 0,
            renew_at: None,
            failures: 0,
            stats: WorkerStats::default(),
            config,
        })
    }

    /// Something happened. What is late, repeated, foreign or unknown is counted and dropped; nothing fails.
    pub fn handle(&mut self, event: WorkerEvent, now: Time) {
        match event {
            WorkerEvent::Message(envelope) => self.receive(envelope, now),
            WorkerEvent::TransferDone { peer, transfer, chunk, ok } => self.copied((peer, transfer), chunk, ok, now),
            WorkerEvent::Dead(peer) => self.peer_dead(peer, now),
        }
    }

    /// The next thing the host shall do, in order; `None` when there is nothing.
    pub fn poll_action(&mut self) -> Option<WorkerAction> {
        self.actions.pop_front()
    }

    fn receive(&mut self, envelope: Envelope, now: Time) {
        if !self.admit(&envelope, now) {
            return;
        }
        match (envelope.from, envelope.body) {
            (Party::Cluster, body) => self.hear_cluster(body, now),
            (Party::Worker(peer), body) => self.hear_peer(peer, body, now),
        }
    }

    fn hear_cluster(&mut self, body: Message, now: Time) {
        match body {
            Message::Welcome(welcome) => self.cluster.welcome(welcome, now),
            Message::Heartbeat => {}
            Message::PeerUp(up) => {
                // A new life of a worker proves that the old one is over; its PeerDead may have passed us by.
                for old in self.older_lives(up.peer) {
                    self.peer_dead(old, now);
                }
                self.peers.join(up.peer);
                self.actions.push_back(WorkerAction::Connect { peer: up.peer, address: up.address.into_vec() });
            }
            Message::PeerDead(peer) => self.peer_dead(peer, now),
            Message::Reserve(reserve) => self.reserve(reserve, now),
            Message::Prefill(prefill) => self.prefill(prefill, now),
            Message::Decode(decode) => {
                if self.supersede(decode.attempt, now) {
                    let part = Part::Run;
                    self.add(decode.attempt, decode.request, Goal::Finish, part, now);
                }
            }
            Message::Abort(attempt) => self.abort(attempt, now),
            _ => self.stats.unknown_subjects += 1,
        }
    }

    fn hear_peer(&mut self, peer: Peer, body: Message, now: Time) {
        match body {
            Message::Sent(sent) => self.arrived(peer, sent, now),
            Message::HandOff(hand_off) => self.handed_over(peer, hand_off, now),
            Message::FenceAck(transfer) => self.fence_acknowledged(peer, transfer),
            Message::Release(transfer) => self.released((peer, transfer), now),
            Message::Fence(transfer) => self.fenced((peer, transfer), now),
            Message::RenewOut(transfers) => self.renewed_by_source(peer, &transfers, now),
            Message::RenewIn(transfers) => self.renewed_by_destination(peer, &transfers, now),
            _ => self.stats.unknown_subjects += 1,
        }
    }

    /// Hands a request to the scheduler under a local id. Says why when it can never run here.
    fn add(&mut self, attempt: Attempt, mut request: crate::Request, goal: Goal, part: Part, now: Time) -> bool {
        let leg = Leg { attempt, part, next_index: request.num_known_outputs() };
        request.id = self.legs.next_local();
        match self.scheduler.add(request, goal, now) {
            Ok(()) => {
                self.legs.insert(leg);
                true
            }
            Err(error) => {
                self.reject(attempt, error.to_string());
                false
            }
        }
    }

    fn reject(&mut self, attempt: Attempt, reason: String) {
        self.tell_cluster(Message::Rejected(Rejected { attempt, reason }));
    }

    /// A new attempt is welcome once, and ends older ones of the same request. False for one that is here already.
    fn supersede(&mut self, attempt: Attempt, now: Time) -> bool {
        if self.legs.find(attempt).is_some() {
            self.stats.stale_messages += 1;
            return false;
        }
        while let Some(older) = self.legs.of_request(attempt.request) {
            if older.number > attempt.number {
                self.stats.stale_messages += 1;
                return false;
            }
            self.abort(older, now);
        }
        true
    }

    /// Ends an attempt here, whatever it is doing. Blocks that somebody may still touch stay behind their fence.
    fn abort(&mut self, attempt: Attempt, now: Time) {
        let Some((local, leg)) = self.legs.find(attempt) else {
            self.stats.unknown_subjects += 1;
            return;
        };
        match leg.part {
            Part::Run => {
                self.scheduler.abort(local, now);
                self.legs.remove(local);
            }
            Part::Inbound(transfer) => self.quarantine(transfer, now),
            Part::Outbound(key) => self.stop_sending(key, false, now),
        }
    }

    /// Proven dead: what it might still have written, it will not.
    fn peer_dead(&mut self, peer: Peer, now: Time) {
        self.source_dead(peer, now);
        self.destination_dead(peer, now);
        if self.peers.leave(peer) {
            self.forget_peer(peer);
        }
    }

    /// Lives of a worker before this one that something here still refers to.
    fn older_lives(&self, peer: Peer) -> BTreeSet<Peer> {
        let sources = self.inbound.values().map(|inbound| inbound.source);
        let destinations = self.outbound.keys().map(|key| key.0);
        let known = sources.chain(destinations).chain(self.peers.current(peer.worker));
        known.filter(|known| known.worker == peer.worker && known.incarnation < peer.incarnation).collect()
    }

    fn forget_peer(&mut self, peer: Peer) {
        self.tombstones.retain(|key, _| key.0 != peer);
        self.actions.push_back(WorkerAction::Disconnect(peer));
    }

    /// The cluster is gone or has forgotten us: nothing here can be wanted any more.
    fn abandon_all(&mut self, now: Time) {
        for attempt in self.legs.attempts() {
            self.abort(attempt, now);
        }
    }

    fn load(&self) -> Load {
        let pool = self.scheduler.pool();
        Load {
            acked_seq: self.cluster.seq_in(),
            used_blocks: pool.num_used(),
            free_blocks: pool.num_free(),
            running: self.scheduler.num_running(),
            waiting: (self.scheduler.num_waiting() + self.scheduler.num_ready()) as u32,
            prefill_tokens: self.scheduler.num_prefill_tokens(),
            kv_tokens: u64::from(pool.num_used()) * u64::from(self.config.scheduler.block_size),
        }
    }

    fn fresh_pin(&mut self) -> PinId {
        self.next_pin += 1;
        self.next_pin
    }

    /// The scheduler inside, to look at. It cannot be driven past the worker.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The configuration.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// Counters.
    pub fn stats(&self) -> &WorkerStats {
        &self.stats
    }

    /// Nothing unfinished, nothing in transfer or quarantine, no block owned.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.inbound.is_empty() && self.outbound.is_empty() && self.legs.is_empty()
    }
}
