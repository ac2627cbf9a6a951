//! Deadlines as data, in order of time.

use crate::ids::{RequestId, WorkerId};
use crate::time::Time;
use std::collections::BTreeSet;

/// What happens at a deadline. Each kind is set at most once per request or worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A request has waited for a place for too long.
    Queue(RequestId),
    /// A reservation has not been answered.
    Reserve(RequestId),
    /// A worker may have been silent for too long. Set early and moved on when it fires, not with every message.
    Silence(WorkerId),
    /// A worker that refused may be asked again.
    Retry(WorkerId),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    armed: BTreeSet<(Time, Timer)>,
}

impl Timers {
    pub fn arm(&mut self, at: Time, timer: Timer) {
        self.armed.insert((at, timer));
    }

    pub fn disarm(&mut self, at: Time, timer: Timer) {
        self.armed.remove(&(at, timer));
    }

    pub fn is_armed(&self, at: Time, timer: Timer) -> bool {
        self.armed.contains(&(at, timer))
    }

    pub fn next(&self) -> Option<Time> {
        self.armed.first().map(|(at, _)| *at)
    }

    /// Takes the earliest deadline that is due.
    pub fn pop_due(&mut self, now: Time) -> Option<Timer> {
        self.armed.first().filter(|(at, _)| *at <= now)?;
        self.armed.pop_first().map(|(_, timer)| timer)
    }

    pub fn len(&self) -> usize {
        self.armed.len()
    }
}
