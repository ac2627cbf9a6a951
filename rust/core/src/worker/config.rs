//! What a worker is told once.

use crate::ids::Peer;
use crate::message::Role;
use crate::scheduler::{ConfigError, SchedulerConfig};
use crate::time::{MILLISECOND, Nanos, SECOND};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Configuration of a [`Worker`](super::Worker).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// Its scheduler.
    pub scheduler: SchedulerConfig,
    /// Its number and its present life.
    pub me: Peer,
    /// What it is for.
    pub role: Role,
    /// What must agree with its peers before KV may flow.
    pub fingerprint: String,
    /// How its peers reach it; opaque.
    pub address: ByteBuf,
    /// How often it says Hello until it is welcomed.
    pub hello_ns: Nanos,
    /// How long a fence may stay unanswered before the writer must die.
    pub kill_after_ns: Nanos,
    /// How long a fenced transfer that we never heard of is remembered, so that a late order to write is refused.
    pub tombstone_ns: Nanos,
    /// Failed steps in a row after which the requests in them are given back.
    pub max_step_failures: u32,
}

impl WorkerConfig {
    /// The defaults for a worker.
    pub fn new(scheduler: SchedulerConfig, me: Peer, role: Role) -> Self {
        Self {
            scheduler,
            me,
            role,
            fingerprint: String::new(),
            address: ByteBuf::new(),
            hello_ns: 200 * MILLISECOND,
            kill_after_ns: 30 * SECOND,
            tombstone_ns: 600 * SECOND,
            max_step_failures: 3,
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let error = |field, value| Err(ConfigError { field, value, rule: "must be at least 1" });
        if self.hello_ns == 0 {
            return error("hello_ns", 0);
        }
        if self.kill_after_ns == 0 {
            return error("kill_after_ns", 0);
        }
        if self.max_step_failures == 0 {
            return error("max_step_failures", 0);
        }
        self.scheduler.validate()
    }
}
