//! Counters: what was done, and what was dropped, by cause. They only grow.

use serde::{Deserialize, Serialize};

/// Counters of a cluster since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStats {
    /// Requests taken.
    pub submitted: u64,
    /// Requests refused when they were handed in.
    pub refused_at_submit: u64,
    /// Requests ended, however.
    pub finished: u64,
    /// Outputs passed on.
    pub emitted_tokens: u64,
    /// Placements on workers.
    pub placements: u64,
    /// Placements that failed and were made again.
    pub failed_attempts: u64,
    /// Reservations a decode worker had no room for.
    pub refusals: u64,
    /// Reservations that were not answered in time.
    pub unanswered: u64,
    /// Aborts for ids that are unknown or finished.
    pub unknown_aborts: u64,
    /// Incarnations lost: dead, replaced or silent.
    pub workers_lost: u64,
    /// Incarnations that introduced themselves again because they had lost their state.
    pub worker_restarts: u64,
    /// Workers refused at their Hello.
    pub workers_refused: u64,

    /// Outputs that were known already.
    pub duplicate_tokens: u64,
    /// Reports whose first output was not the next one.
    pub token_gaps: u64,
    /// Entries of messages about an attempt that is over.
    pub stale_attempts: u64,
    /// Messages, or entries of them, that do not fit the state of what they speak about, or are not for the cluster.
    pub unexpected: u64,
    /// Messages that contradict themselves.
    pub malformed: u64,
    /// Messages whose number had come before.
    pub duplicate_messages: u64,
    /// Messages that never came, by the numbers of those that did.
    pub lost_messages: u64,
    /// Messages of another epoch.
    pub foreign_epoch: u64,
    /// Messages of workers that have not introduced themselves.
    pub unknown_peer: u64,
    /// Messages of incarnations that are over.
    pub dead_incarnation: u64,
}
