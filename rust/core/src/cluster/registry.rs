//! The workers: who they are, what they can hold, whether they are there, and the numbers of the messages to and from
//! each. Health does not touch anything else kept about a worker.

use crate::ids::{Attempt, Incarnation, Peer, WorkerId};
use crate::message::{Hello, Role};
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// Whether a worker is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// It speaks.
    Up,
    /// It has been silent for a while: it gets no new requests and keeps those it has.
    Suspect,
    /// It has been silent for so long that its requests were placed again. It may come back.
    Lost,
}

impl Health {
    /// The word used in Python, in logs and in golden texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Lost => "lost",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub peer: Peer,
    pub hello: Hello,
    pub health: Health,
    /// Number of the newest message from it.
    pub last_seq: u64,
    /// Number of the newest message to it.
    pub sent_seq: u64,
    pub last_heard: Time,
    pub last_sent: Time,
    /// When its silence is looked at next; nothing is armed once it is lost.
    pub silence_at: Time,
    /// It refused a reservation, and until then, or until it reports, it is not asked again.
    pub refused_until: Option<Time>,
    /// Attempts it was told to end while it was lost; it hears of them when it speaks again.
    pub owed_aborts: Vec<Attempt>,
    /// The newest attempts it was told to end, so that each of its late reports does not bring another message.
    told_to_end: VecDeque<Attempt>,
}

impl Worker {
    const REMEMBERED: usize = 512;

    pub fn new(peer: Peer, hello: Hello, seq: u64, now: Time, silence_at: Time) -> Self {
        Self {
            peer,
            hello,
            health: Health::Up,
            last_seq: seq,
            sent_seq: 0,
            last_heard: now,
            last_sent: now,
            silence_at,
            refused_until: None,
            owed_aborts: Vec::new(),
            told_to_end: VecDeque::new(),
        }
    }

    /// Tokens its pool holds.
    pub fn capacity(&self) -> u64 {
        u64::from(self.hello.num_blocks) * u64::from(self.hello.block_size)
    }

    /// Tokens of the longest sequence it takes, when empty.
    pub fn limit(&self) -> u64 {
        self.capacity().min(self.hello.max_model_len.into())
    }

    /// Whether this is the first time that it is told to end the attempt, as far as remembered.
    pub fn tell_to_end(&mut self, attempt: Attempt) -> bool {
        if self.told_to_end.contains(&attempt) {
            return false;
        }
        if self.told_to_end.len() == Self::REMEMBERED {
            self.told_to_end.pop_front();
        }
        self.told_to_end.push_back(attempt);
        true
    }
}

/// Why the envelope of a message is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unaccepted {
    Unknown,
    DeadIncarnation,
    Duplicate,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Registry {
    workers: BTreeMap<WorkerId, Worker>,
    /// Newest incarnation of each worker that is over. Incarnations of one worker only grow.
    over: BTreeMap<WorkerId, Incarnation>,
    largest: Option<u64>,
}

impl Registry {
    pub fn insert(&mut self, worker: Worker) {
        self.workers.insert(worker.peer.worker, worker);
        self.largest = self.compute_largest();
    }

    pub fn remove(&mut self, peer: Peer) -> Option<Worker> {
        self.current(peer)?;
        let removed = self.workers.remove(&peer.worker);
        self.largest = self.compute_largest();
        removed
    }

    /// This incarnation, and every older one of the worker, is over.
    pub fn mark_over(&mut self, peer: Peer) {
        let newest = self.over.entry(peer.worker).or_default();
        *newest = peer.incarnation.max(*newest);
    }

    pub fn is_over(&self, peer: Peer) -> bool {
        self.over.get(&peer.worker).is_some_and(|newest| peer.incarnation <= *newest)
    }

    pub fn get(&self, worker: WorkerId) -> Option<&Worker> {
        self.workers.get(&worker)
    }

    pub fn get_mut(&mut self, worker: WorkerId) -> Option<&mut Worker> {
        self.workers.get_mut(&worker)
    }

    /// The worker, if this is its present incarnation.
    pub fn current(&self, peer: Peer) -> Option<&Worker> {
        self.workers.get(&peer.worker).filter(|worker| worker.peer == peer)
    }

    /// [`current`](Self::current), to change.
    pub fn current_mut(&mut self, peer: Peer) -> Option<&mut Worker> {
        self.workers.get_mut(&peer.worker).filter(|worker| worker.peer == peer)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    /// The peers other than this worker, by id.
    pub fn others(&self, worker: WorkerId) -> Vec<Peer> {
        self.iter().map(|other| other.peer).filter(|peer| peer.worker != worker).collect()
    }

    /// Tokens of the longest sequence that the registered workers take, together: the prompt must fit a prefill worker
    /// as well as a decode worker, or one that does both. `None` while no such pair or worker is registered. Silent
    /// workers count, since they may come back.
    pub fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Whether the worker takes a sequence of `tokens` and one more, when empty, and may be asked now.
    pub fn may_take(&self, worker: WorkerId, tokens: u64) -> bool {
        self.get(worker).is_some_and(|worker| tokens < worker.limit() && worker.refused_until.is_none())
    }

    /// Checks the sender and the number of a message; returns how many messages before it never came.
    pub fn accept(&mut self, peer: Peer, seq: u64) -> Result<u64, Unaccepted> {
        if self.is_over(peer) {
            return Err(Unaccepted::DeadIncarnation);
        }
        let worker = self.workers.get_mut(&peer.worker).ok_or(Unaccepted::Unknown)?;
        if peer.incarnation < worker.peer.incarnation {
            return Err(Unaccepted::DeadIncarnation);
        }
        if peer.incarnation > worker.peer.incarnation {
            return Err(Unaccepted::Unknown);
        }
        if seq <= worker.last_seq {
            return Err(Unaccepted::Duplicate);
        }
        let lost = seq - worker.last_seq - 1;
        worker.last_seq = seq;
        Ok(lost)
    }

    fn compute_largest(&self) -> Option<u64> {
        let limit = |role| self.iter().filter(|w| w.hello.role == role).map(Worker::limit).max();
        let split = limit(Role::Prefill).zip(limit(Role::Decode)).map(|(prefill, decode)| prefill.min(decode));
        split.max(limit(Role::Both))
    }
}
