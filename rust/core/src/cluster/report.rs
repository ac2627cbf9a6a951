//! What a step report means for the requests in it.

use super::{Cluster, ClusterAction};
use crate::ids::{Attempt, Peer};
use crate::message::{End, StepReport};
use crate::time::Time;
use serde_bytes::ByteBuf;

impl Cluster {
    /// Within one report progress comes before activation, activation before tokens, and tokens before ends.
    pub(super) fn step_report(&mut self, from: Peer, report: StepReport, now: Time) {
        if !is_consistent(&report) {
            self.stats.malformed += 1;
            return;
        }
        let StepReport { attempts, first_index, counts, token_ids, extras, ends, progress, activated } = report;
        for (attempt, computed) in progress {
            if self.is_current(from, attempt, &ends, now) {
                self.prefill_progress(from, attempt, computed);
            }
        }
        for attempt in activated {
            if self.is_current(from, attempt, &ends, now) {
                self.activated(from, attempt, now);
            }
        }
        let (mut tokens, mut extras) = (token_ids.as_slice(), extras.into_iter());
        for ((attempt, first), count) in attempts.into_iter().zip(first_index).zip(counts) {
            let (mine, rest) = tokens.split_at(count as usize);
            let extras: Vec<ByteBuf> = extras.by_ref().take(mine.len()).collect();
            tokens = rest;
            if self.is_current(from, attempt, &ends, now) {
                self.tokens(from, attempt, first, mine, extras, now);
            }
        }
        for end in ends {
            self.ended(from, end, now);
        }
    }

    /// Whether the attempt is the request's present one. If not, and it has not ended on the worker by itself, the
    /// worker is told to end it: whatever it computes for it is lost work.
    fn is_current(&mut self, from: Peer, attempt: Attempt, ends: &[End], now: Time) -> bool {
        if self.entry(attempt).is_some() {
            return true;
        }
        self.stats.stale_attempts += 1;
        if !ends.iter().any(|end| end.attempt == attempt) {
            self.send_abort(from, attempt, now);
        }
        false
    }

    /// Passes on what is new among the tokens. Both sides of a hand-off report the first one, so repeats are normal.
    fn tokens(&mut self, from: Peer, attempt: Attempt, first: u32, ids: &[u32], mut extras: Vec<ByteBuf>, now: Time) {
        let Some(entry) = self.requests.get_mut(&attempt.request) else {
            return;
        };
        let next = entry.next_index();
        let known = next.saturating_sub(first) as usize;
        self.stats.duplicate_tokens += known.min(ids.len()) as u64;
        if known >= ids.len() {
            return;
        }
        if !entry.state.generates_on(from) {
            self.stats.unexpected += 1;
            return;
        }
        if first > next {
            self.stats.token_gaps += 1;
            self.fail(attempt.request, "tokens of it were lost", None, now); // nobody says them again
            return;
        }
        let ids = &ids[known..];
        if !extras.is_empty() {
            extras.drain(..known);
        }
        let is_first = entry.outputs.is_empty();
        entry.outputs.extend_from_slice(ids);
        entry.timing.first_token.get_or_insert(now);
        self.stats.emitted_tokens += ids.len() as u64;
        self.balancer.grow(attempt.request, entry.num_tokens());
        self.actions.push_back(ClusterAction::Emit {
            request: attempt.request,
            index: next,
            token_ids: ids.into(),
            extras,
        });
        if is_first {
            self.first_token(attempt.request, now);
        }
    }
}

/// The columns have the lengths they must have.
fn is_consistent(report: &StepReport) -> bool {
    let n = report.attempts.len();
    let tokens: u64 = report.counts.iter().map(|count| u64::from(*count)).sum();
    report.first_index.len() == n
        && report.counts.len() == n
        && report.token_ids.len() as u64 == tokens
        && (report.extras.is_empty() || report.extras.len() == report.token_ids.len())
}
