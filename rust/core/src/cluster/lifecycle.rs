//! The life of a request: every state, every transition, here and nowhere else.
//!
//! | state | on a worker's word | by time | abort | loss of a worker it names |
//! |---|---|---|---|---|
//! | `Queued` | a place is found: `Reserving` or `Running` | `queue_timeout_ns`: ends, `timeout` | ends | names none |
//! | `Reserving` | `Reserved`: `Prefilling`; `ReserveRefused`: `Queued`, no try lost; `Rejected`: ends, `refused` | two leases: placed again | ends | placed again |
//! | `Prefilling` | first token: `HandedOff`; activated: `Decoding`; end: ends | the decode side's lease: `AttemptFailed` | ends | placed again |
//! | `HandedOff` | activated: `Decoding`; end: ends | the decode side's lease: `AttemptFailed` | ends | placed again |
//! | `Decoding` | end: ends | the worker's silence | ends | placed again |
//! | `Running` | end: ends; `Rejected`: ends, `refused` | the worker's silence | ends | placed again |
//!
//! *Placed again*: the workers that know of the try are told to end it, the outputs so far become part of the request,
//! and it goes back to `Queued` (phase `resuming`) at its old place in line; after `max_attempts` failures it ends,
//! `error`. `AttemptFailed`, a lost message and a hole in the tokens have the same effect in every state that names the
//! worker. *Ends*: exactly one `Finish`, bookings released, the request forgotten; what still comes in about it is
//! stale. Whatever a report of the wrong worker or in the wrong state says is counted and changes nothing.
//!
//! **Attempt numbers.** Every placement gets a new one, so that a message of an old one is told from its number alone.
//! They begin at 1 for an id that is greater than all before it, which is surely new; for another, which may have been
//! used by a request that finished, above every number used so far.

use super::queue::Order;
use super::route::{Route, route};
use super::state::{Entry, State};
use super::{Cluster, ClusterAction, ClusterError, Phase, Timer};
use crate::ids::{Attempt, Peer, RequestId};
use crate::message::{AttemptFailed, Decode, End, Message, Prefill, Rejected, Reserve, Reserved};
use crate::request::{FinishReason, Request};
use crate::time::{MILLISECOND, Time};

// Handed in, placed, ended.
impl Cluster {
    pub(super) fn submit(&mut self, request: Request, now: Time) -> Result<(), ClusterError> {
        self.validate(&request)?;
        let id = request.id;
        let is_new = self.greatest_id.is_none_or(|greatest| greatest < id);
        self.greatest_id = self.greatest_id.max(Some(id));
        let wait_until = now.saturating_add(self.config.queue_timeout_ns);
        let number = if is_new { 0 } else { self.greatest_number };
        let mut entry = Entry::new(request, self.next_order, number, wait_until);
        self.next_order += 1;
        self.stats.submitted += 1;
        self.may_place |= self.queue.is_empty(); // else the head has been tried already
        entry.enter(State::Queued { resuming: false }, &mut self.actions, now);
        self.queue.insert(entry.order, id);
        self.timers.arm(wait_until, Timer::Queue(id));
        self.requests.insert(id, entry);
        Ok(())
    }

    /// First come, first served: places requests from the head of the queue until one has to wait.
    pub(super) fn place_waiting(&mut self, now: Time) {
        while self.may_place {
            let Some(id) = self.queue.first() else { break };
            let entry = &self.requests[&id];
            let (tokens, remaining) = (entry.num_tokens(), entry.request.max_tokens - entry.next_index());
            if let Some(limit) = self.registry.largest().filter(|limit| tokens >= *limit) {
                let detail = format!("{tokens} tokens and one more fit no worker; the largest limit is {limit}");
                self.finish(id, FinishReason::Refused, Some(detail), None, now);
                continue;
            }
            let expected = u64::from(remaining.min(self.config.expected_output_tokens));
            match route(&self.balancer, &self.registry, tokens, expected) {
                Some(route) => self.place(id, route, expected, now),
                None => self.may_place = false,
            }
        }
    }

    fn place(&mut self, id: RequestId, route: Route, expected: u64, now: Time) {
        let entry = self.requests.get_mut(&id).expect("a queued request is there");
        entry.number = entry.number.wrapping_add(1);
        // After four thousand million placements the numbers begin again; what they named is long over.
        self.greatest_number = if entry.number == 0 { 0 } else { self.greatest_number.max(entry.number) };
        self.stats.placements += 1;
        self.queue.remove(entry.order);
        self.timers.disarm(entry.wait_until, Timer::Queue(id));
        let (attempt, tokens, request) = (entry.attempt(), entry.num_tokens(), entry.request.clone());
        let peer = |worker| self.registry.get(worker).expect("a route leads to registered workers").peer;
        let (state, to, message) = match route {
            Route::Split { prefill, decode } => {
                let (prefill, decode) = (peer(prefill), peer(decode));
                let lease_ns = self.config.lease_ns;
                let until = now.saturating_add(lease_ns.saturating_mul(2));
                self.balancer.book_decode(decode.worker, id, tokens, expected);
                self.balancer.book_prefill(prefill.worker, id, tokens);
                self.timers.arm(until, Timer::Reserve(id));
                let reserve = Reserve { attempt, request, source: prefill, lease_ns };
                (State::Reserving { prefill, decode, until }, decode, Message::Reserve(reserve))
            }
            Route::Both(worker) => {
                let worker = peer(worker);
                self.balancer.book_both(worker.worker, id, tokens, expected);
                (State::Running { worker }, worker, Message::Decode(Decode { attempt, request }))
            }
        };
        entry.enter(state, &mut self.actions, now);
        let seq = self.send(to, message, now).expect("the worker is registered");
        self.balancer.sent(id, to.worker, seq);
    }

    pub(super) fn abort(&mut self, id: RequestId, now: Time) {
        if self.requests.contains_key(&id) {
            self.finish(id, FinishReason::Abort, None, None, now);
        } else {
            self.stats.unknown_aborts += 1;
        }
    }

    /// The request has waited for a place for as long as it may.
    pub(super) fn waited_too_long(&mut self, id: RequestId, now: Time) {
        let detail = format!("no place within {} ms", self.config.queue_timeout_ns / MILLISECOND);
        self.finish(id, FinishReason::Timeout, Some(detail), None, now);
        self.may_place = true;
    }

    /// The only end of a request. Workers that know of it are told, except the one that said so itself.
    fn finish(&mut self, id: RequestId, reason: FinishReason, detail: Option<String>, by: Option<Peer>, now: Time) {
        let mut entry = self.requests.remove(&id).expect("only a live request ends");
        self.leave_state(&entry);
        for peer in entry.state.told().filter(|peer| Some(*peer) != by) {
            self.send_abort(peer, entry.attempt(), now);
        }
        self.stats.finished += 1;
        entry.timing.enter(Phase::Finished, now);
        let timing = entry.timing;
        self.actions.push_back(ClusterAction::Finish { request: id, reason, detail, timing });
    }

    /// Undoes what entering the state did outside the entry: its place in line, its timer, its bookings.
    fn leave_state(&mut self, entry: &Entry) {
        let id = entry.request.id;
        match entry.state {
            State::Queued { .. } => {
                self.queue.remove(entry.order);
                self.timers.disarm(entry.wait_until, Timer::Queue(id));
            }
            State::Reserving { until, .. } => self.timers.disarm(until, Timer::Reserve(id)),
            _ => {}
        }
        self.balancer.release(id);
        self.may_place = true;
    }
}

// Placed again.
impl Cluster {
    /// The try failed: see *placed again* above. `gone` needs not be told.
    pub(super) fn fail(&mut self, id: RequestId, cause: &str, gone: Option<Peer>, now: Time) {
        let mut entry = self.requests.remove(&id).expect("only a live request fails");
        self.leave_state(&entry);
        self.stats.failed_attempts += 1;
        for peer in entry.state.told().filter(|peer| Some(*peer) != gone) {
            self.send_abort(peer, entry.attempt(), now);
        }
        entry.failures += 1;
        entry.fold_outputs();
        entry.wait_until = now.saturating_add(self.config.queue_timeout_ns);
        let (failures, complete) = (entry.failures, entry.next_index() >= entry.request.max_tokens);
        self.queue_again(entry, now);
        if complete {
            self.finish(id, FinishReason::Length, None, None, now); // only its end was lost
        } else if failures >= self.config.max_attempts {
            let detail = format!("failed {failures} times, the last time because {cause}");
            self.finish(id, FinishReason::Error, Some(detail), None, now);
        }
    }

    /// Fails every try that names the worker, in the order in which the requests were handed in.
    pub(super) fn fail_all_on(&mut self, peer: Peer, cause: &str, gone: Option<Peer>, now: Time) {
        let on_it = self.requests.values().filter(|entry| entry.state.names(peer));
        let mut ids: Vec<(Order, RequestId)> = on_it.map(|entry| (entry.order, entry.request.id)).collect();
        ids.sort_unstable();
        for (_, id) in ids {
            self.fail(id, cause, gone, now);
        }
    }

    fn queue_again(&mut self, mut entry: Entry, now: Time) {
        let (id, state) = (entry.request.id, State::Queued { resuming: entry.failures > 0 });
        entry.enter(state, &mut self.actions, now);
        self.queue.insert(entry.order, id);
        self.timers.arm(entry.wait_until, Timer::Queue(id));
        self.requests.insert(id, entry);
    }

    pub(super) fn reserve_unanswered(&mut self, id: RequestId, now: Time) {
        self.stats.unanswered += 1;
        self.fail(id, "its reservation was not answered", None, now);
    }
}

// What workers say. A try that is over is found by its number, a wrong sender or a wrong state by the state.
impl Cluster {
    /// The request of this try, if it is the present one and on a worker.
    pub(super) fn entry(&mut self, attempt: Attempt) -> Option<&mut Entry> {
        let entry = self.requests.get_mut(&attempt.request)?;
        (entry.number == attempt.number && !matches!(entry.state, State::Queued { .. })).then_some(entry)
    }

    pub(super) fn reserved(&mut self, from: Peer, reserved: Reserved, now: Time) {
        let Reserved { attempt, destination } = reserved;
        let lease_ns = self.config.lease_ns;
        let Some(entry) = self.entry(attempt) else {
            self.stats.stale_attempts += 1;
            return self.send_abort(from, attempt, now);
        };
        let State::Reserving { prefill, decode, until } = entry.state else {
            return self.stats.unexpected += 1;
        };
        if decode != from {
            return self.stats.unexpected += 1;
        }
        if destination.peer != from {
            self.stats.malformed += 1;
            return self.fail(attempt.request, "its reservation names another worker", None, now);
        }
        let request = entry.request.clone();
        self.transition(attempt, State::Prefilling { prefill, decode }, now);
        self.timers.disarm(until, Timer::Reserve(attempt.request));
        let message = Message::Prefill(Prefill { attempt, request, destination, lease_ns });
        let seq = self.send(prefill, message, now).expect("a state names registered workers");
        self.balancer.sent(attempt.request, prefill.worker, seq);
    }

    pub(super) fn reserve_refused(&mut self, from: Peer, attempt: Attempt, now: Time) {
        let Some(entry) = self.entry(attempt) else {
            return self.stats.stale_attempts += 1;
        };
        if !matches!(entry.state, State::Reserving { decode, .. } if decode == from) {
            return self.stats.unexpected += 1;
        }
        let entry = self.requests.remove(&attempt.request).expect("found above");
        self.stats.refusals += 1;
        self.leave_state(&entry);
        let in_time = now < entry.wait_until;
        self.queue_again(entry, now);
        self.wait_after_refusal(from, now);
        if !in_time {
            self.waited_too_long(attempt.request, now); // refused to the end, and not to be tried once more
        }
    }

    pub(super) fn rejected(&mut self, from: Peer, rejected: Rejected, now: Time) {
        let Some(entry) = self.entry(rejected.attempt) else {
            return self.stats.stale_attempts += 1;
        };
        if !entry.state.names(from) {
            return self.stats.unexpected += 1;
        }
        self.finish(rejected.attempt.request, FinishReason::Refused, Some(rejected.reason), Some(from), now);
    }

    pub(super) fn attempt_failed(&mut self, from: Peer, failed: AttemptFailed, now: Time) {
        let Some(entry) = self.entry(failed.attempt) else {
            return self.stats.stale_attempts += 1;
        };
        if !entry.state.names(from) {
            return self.stats.unexpected += 1; // a source that was not told of its release: the decode side has it all
        }
        self.fail(failed.attempt.request, failed.reason.as_str(), Some(from), now);
    }

    pub(super) fn ended(&mut self, from: Peer, end: End, now: Time) {
        let Some(entry) = self.entry(end.attempt) else {
            return self.stats.stale_attempts += 1;
        };
        if !entry.state.generates_on(from) {
            return self.stats.unexpected += 1;
        }
        self.finish(end.attempt.request, end.reason, None, Some(from), now);
    }

    pub(super) fn prefill_progress(&mut self, from: Peer, attempt: Attempt, computed: u32) {
        let Some(entry) = self.entry(attempt) else { return };
        match entry.state {
            State::Prefilling { prefill, .. } if prefill == from => {
                self.balancer.prefill_progress(attempt.request, computed.into());
            }
            // The last progress may come with or after the token.
            _ => {}
        }
    }

    /// The first output of the try is there: its prompt is computed.
    pub(super) fn first_token(&mut self, id: RequestId, now: Time) {
        let entry = &self.requests[&id];
        let attempt = entry.attempt();
        match entry.state {
            State::Prefilling { prefill, decode } => {
                self.balancer.release_prefill(id);
                self.transition(attempt, State::HandedOff { prefill, decode }, now);
            }
            State::Running { .. } => self.balancer.release_prefill(id),
            _ => {}
        }
    }

    /// The decode side has everything. The source, released by it, is not part of the request any more.
    pub(super) fn activated(&mut self, from: Peer, attempt: Attempt, now: Time) {
        let Some(entry) = self.entry(attempt) else { return };
        match entry.state {
            State::Prefilling { decode, .. } | State::HandedOff { decode, .. } if decode == from => {
                self.balancer.release_prefill(attempt.request);
                self.transition(attempt, State::Decoding { decode }, now);
            }
            _ => self.stats.unexpected += 1,
        }
    }

    fn transition(&mut self, attempt: Attempt, state: State, now: Time) {
        let entry = self.requests.get_mut(&attempt.request).expect("only a live request changes its state");
        entry.enter(state, &mut self.actions, now);
    }
}
