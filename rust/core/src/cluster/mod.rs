//! `Cluster`: who runs where. Request-level, one per deployment, sans-I/O.
//!
//! ```text
//!  Submit, Abort, WorkerDead ─►┌─────────┐─► Emit, Finish, Entered, WorkerUp/Down/Refused   (to the host)
//!  Message from a worker ─────►│ Cluster │─► Send                                           (to a worker)
//!  time ──────────────────────►└─────────┘─► poll_timeout
//! ```
//!
//! A host does this, and nothing else:
//!
//! 1. [`handle`](Cluster::handle) whatever happens, with the time, and [`handle_timeout`](Cluster::handle_timeout) when
//!    the time of [`poll_timeout`](Cluster::poll_timeout) has come;
//! 2. after each, [`poll_action`](Cluster::poll_action) until it is empty, carrying them out in order. Messages to and
//!    from one worker must stay in order; a missing number is taken for a lost message;
//! 3. give a restarted worker a greater incarnation than any before it, and only once the old process has ended: a
//!    Hello of the new one is taken as proof that the old one will not write again.
//!
//! | file | concept |
//! |---|---|
//! | `inbox` | which messages are accepted, and where they go |
//! | `admission` | which requests are taken at all |
//! | `lifecycle` | every transition of a request, with the table on top |
//! | `report` | what a step report means for the requests in it |
//! | `membership` | workers come, go silent, die, come back |
//! | `route` | which workers a request goes to |
//! | `state`, `registry`, `queue`, `timers` | the data |
//! | `check` | what must always be true |

mod admission;
mod check;
mod config;
mod error;
mod event;
mod inbox;
mod lifecycle;
mod membership;
mod queue;
mod registry;
mod report;
mod route;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod timers;

pub use config::ClusterConfig;
pub use error::{ClusterError, ConfigError};
pub use event::{ClusterAction, ClusterEvent, DownReason, Phase, Timing, Tokens};
pub use registry::Health;
pub use stats::ClusterStats;

use crate::balance::{LoadBalancer, WorkerLoad};
use crate::ids::{Attempt, Peer, RequestId, WorkerId};
use crate::message::{Envelope, Message, Party, Role};
use crate::time::Time;
use queue::{Order, Queue};
use registry::Registry;
use rustc_hash::FxHashMap;
use state::Entry;
use std::collections::VecDeque;
use timers::{Timer, Timers};

/// The request-level state machine. See the module's documentation for the duties of its host.
#[derive(Clone, Debug)]
pub struct Cluster {
    config: ClusterConfig,
    registry: Registry,
    balancer: LoadBalancer,
    /// Every request that has not finished. Looked up by id only: its order of iteration must not show.
    requests: FxHashMap<RequestId, Entry>,
    queue: Queue,
    timers: Timers,
    actions: VecDeque<ClusterAction>,
    stats: ClusterStats,
    /// Something happened since the head of the queue was last tried.
    may_place: bool,
    next_order: Order,
    /// Greatest id ever taken, and greatest attempt number ever used: see `lifecycle`.
    greatest_id: Option<RequestId>,
    greatest_number: u32,
}

/// A request as [`Cluster::requests`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestView {
    /// The request and its newest try (number 0 before the first).
    pub attempt: Attempt,
    /// Where it is in its life.
    pub phase: Phase,
    /// The prefill worker it is on.
    pub prefill: Option<WorkerId>,
    /// The decode worker it is on.
    pub decode: Option<WorkerId>,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Outputs known, those it brought included.
    pub outputs: u32,
    /// Tries that failed.
    pub failures: u32,
}

/// A worker as [`Cluster::workers`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// The worker in its present life.
    pub peer: Peer,
    /// What it is for.
    pub role: Role,
    /// Whether it is there.
    pub health: Health,
    /// When it was last heard.
    pub last_heard: Time,
}

impl Cluster {
    /// A cluster without workers. Fails when a value of `config` makes no sense, and names it.
    pub fn new(config: ClusterConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            registry: Registry::default(),
            balancer: LoadBalancer::new(),
            requests: FxHashMap::default(),
            queue: Queue::default(),
            timers: Timers::default(),
            actions: VecDeque::new(),
            stats: ClusterStats::default(),
            may_place: false,
            next_order: 0,
            greatest_id: None,
            greatest_number: 0,
        })
    }

    /// Takes an event. Only [`ClusterEvent::Submit`] can fail, and then nothing has changed but a counter; everything
    /// else that cannot be used is counted in [`stats`](Self::stats) and dropped.
    pub fn handle(&mut self, event: ClusterEvent, now: Time) -> Result<(), ClusterError> {
        let result = match event {
            ClusterEvent::Submit(request) => {
                self.submit(request, now).inspect_err(|_| self.stats.refused_at_submit += 1)
            }
            ClusterEvent::Abort(request) => {
                self.abort(request, now);
                Ok(())
            }
            ClusterEvent::Message(envelope) => {
                self.receive(envelope, now);
                Ok(())
            }
            ClusterEvent::WorkerDead(peer) => {
                self.worker_dead(peer, now);
                Ok(())
            }
        };
        self.place_waiting(now);
        result
    }

    /// Does what is due at `now`. Calling it early or late is harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Queue(request) => self.waited_too_long(request, now),
                Timer::Reserve(request) => self.reserve_unanswered(request, now),
                Timer::Silence(worker) => self.look_at_silence(worker, now),
                Timer::Retry(worker) => self.retry_after_refusal(worker),
            }
        }
        self.place_waiting(now);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<ClusterAction> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next; `None`: only an event can help. It may turn
    /// out that nothing was due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// What was done and what was dropped.
    pub fn stats(&self) -> ClusterStats {
        self.stats
    }

    /// The configuration.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// The requests that have not finished, in the order in which they were handed in.
    pub fn requests(&self) -> Vec<RequestView> {
        let mut entries: Vec<&Entry> = self.requests.values().collect();
        entries.sort_unstable_by_key(|entry| entry.order);
        entries.into_iter().map(Entry::view).collect()
    }

    /// Number of requests that have not finished.
    pub fn num_requests(&self) -> usize {
        self.requests.len()
    }

    /// Number of requests that wait for a place.
    pub fn num_waiting(&self) -> usize {
        self.queue.len()
    }

    /// The workers, by id.
    pub fn workers(&self) -> Vec<WorkerView> {
        let view = |worker: &registry::Worker| WorkerView {
            peer: worker.peer,
            role: worker.hello.role,
            health: worker.health,
            last_heard: worker.last_heard,
        };
        self.registry.iter().map(view).collect()
    }

    /// The loads of all workers, by id.
    pub fn loads(&self) -> Vec<WorkerLoad> {
        self.balancer.loads()
    }

    /// Verifies everything that must always be true; the text says what is not. Costs time in proportion to the number
    /// of requests.
    pub fn check(&self) -> Result<(), String> {
        check::check(self)
    }

    /// Sends a message to a worker in this incarnation, if it is still the present one; returns the message's number.
    fn send(&mut self, to: Peer, body: Message, now: Time) -> Option<u64> {
        let worker = self.registry.current_mut(to)?;
        worker.sent_seq += 1;
        worker.last_sent = now;
        let seq = worker.sent_seq;
        let (from, epoch) = (Party::Cluster, self.config.epoch);
        let message = Envelope { from, to: to.incarnation, epoch, seq, body };
        self.actions.push_back(ClusterAction::Send { to, message });
        Some(seq)
    }

    /// Tells a worker to end an attempt, once; a lost one hears of it when it speaks again.
    fn send_abort(&mut self, to: Peer, attempt: Attempt, now: Time) {
        let Some(worker) = self.registry.current_mut(to) else {
            return;
        };
        if !worker.tell_to_end(attempt) {
            return;
        }
        if worker.health == Health::Lost {
            worker.owed_aborts.push(attempt);
        } else {
            self.send(to, Message::Abort(attempt), now);
        }
    }
}
