//! Which worker takes a request: a view of the workers, policies over it, and one ledger of bookings.
//!
//! Load is **occupied KV over capacity**. A worker's KV is occupied by
//!
//! * what it *holds*: its last report, moved along by what has been seen of its requests since;
//! * what is *booked*: placements that the report does not cover yet. A placement is booked at the moment of the
//!   decision, so a burst between two reports spreads; it is covered by the first report whose `acked_seq` reaches
//!   the number of the message that carried it;
//! * the *expected growth* of every request placed there, covered or not.
//!
//! Reports reconcile, they do not overwrite: they replace what they speak about and leave the rest of the ledger alone.
//! Policies ([`least_kv`], [`least_prefill`]) are pure functions over [`WorkerLoad`]s; only the ledger books.

mod check;
pub mod least_kv;
pub mod least_prefill;
mod ledger;
#[cfg(test)]
mod tests;

use crate::ids::{RequestId, WorkerId};
use crate::message::Role;
use ledger::Ledger;

/// What a policy sees of a worker, and what an operator does. All amounts are tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Which worker.
    pub worker: WorkerId,
    /// What it is for.
    pub role: Role,
    /// It may be given new requests.
    pub up: bool,
    /// Tokens of KV it can hold.
    pub capacity: u64,
    /// Tokens of KV it holds (on a `both` worker with the prompts it has accepted and not computed yet).
    pub held: u64,
    /// Tokens placed there that no report covers yet.
    pub booked: u64,
    /// Outputs still expected from everything placed there.
    pub expected_growth: u64,
    /// Prompt tokens it still has to compute, booked ones included.
    pub queued_prefill: u64,
    /// Bookings on it; one of both phases counts twice.
    pub placements: u32,
}

impl WorkerLoad {
    /// Tokens held, booked and expected.
    pub fn occupied(&self) -> u64 {
        self.held + self.booked + self.expected_growth
    }

    /// [`occupied`](Self::occupied) over capacity; above 1 when more is expected than fits. For people: policies
    /// compare exact fractions.
    pub fn occupancy(&self) -> f64 {
        self.occupied() as f64 / self.capacity as f64
    }

    /// Tokens neither held nor booked: what could be placed right now without waiting for anything to end.
    pub fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.held + self.booked)
    }
}

/// A worker's report, in tokens. See [`LoadBalancer::report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its number among the messages of this worker; an older one than the last is stale.
    pub seq: u64,
    /// Newest message to the worker that the figures take into account.
    pub acked_seq: u64,
    /// Tokens of KV in use.
    pub used_tokens: u64,
    /// Prompt tokens it still has to compute.
    pub prefill_tokens: u64,
}

/// Places requests on workers and keeps the books. Usable alone, without a cluster.
///
/// The duties of whoever drives it: [`sent`](Self::sent) with the number of the message that carries a placement
/// (only when workers report at all), [`grow`](Self::grow) as tokens come in, and [`release`](Self::release) exactly
/// when the request leaves, however it leaves. Calls about unknown requests or workers change nothing.
///
/// ```
/// use pdsched_core::{balance::LoadBalancer, ids::{RequestId, WorkerId}, message::Role};
/// let mut balancer = LoadBalancer::new();
/// balancer.add_worker(WorkerId(0), Role::Decode, 10_000);
/// balancer.add_worker(WorkerId(1), Role::Decode, 10_000);
/// assert_eq!(balancer.place_decode(RequestId(1), 8_000, 100), Some(WorkerId(0)));
/// assert_eq!(balancer.place_decode(RequestId(2), 100, 100), Some(WorkerId(1)));
/// assert_eq!(balancer.place_decode(RequestId(3), 100, 100), Some(WorkerId(1))); // by tokens, not by count
/// balancer.release(RequestId(1));
/// ```
#[derive(Clone, Debug, Default)]
pub struct LoadBalancer {
    ledger: Ledger,
}

impl LoadBalancer {
    /// No workers, nothing booked.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a worker that can hold `capacity_tokens` of KV. A known one is updated and keeps its load: a health check
    /// or a second registration must not make a full worker look idle. Returns whether it is new.
    pub fn add_worker(&mut self, worker: WorkerId, role: Role, capacity_tokens: u64) -> bool {
        self.ledger.add_worker(worker, role, capacity_tokens)
    }

    /// Forgets a worker and what was booked on it. Returns the requests that had a booking there, by id; the half of
    /// a placement that lies on another worker stays until [`release`](Self::release).
    pub fn remove_worker(&mut self, worker: WorkerId) -> Vec<RequestId> {
        self.ledger.remove_worker(worker)
    }

    /// A worker that is not up gets no new requests and keeps its bookings. Returns whether the worker is known.
    pub fn set_health(&mut self, worker: WorkerId, up: bool) -> bool {
        self.ledger.set_health(worker, up)
    }

    /// The decode worker for a request that holds `tokens` and is expected to grow by `expected`, or `None` when none
    /// that is up could ever hold it. Books nothing.
    pub fn choose_decode(&self, tokens: u64, expected: u64) -> Option<WorkerId> {
        self.choose_decode_if(tokens, expected, |_| true)
    }

    /// [`choose_decode`](Self::choose_decode) among the workers that `usable` accepts.
    pub fn choose_decode_if(
        &self,
        tokens: u64,
        expected: u64,
        usable: impl Fn(&WorkerLoad) -> bool,
    ) -> Option<WorkerId> {
        self.least_kv(Role::Decode, tokens, expected, usable)
    }

    /// The prefill worker for a prompt, or `None`. Books nothing.
    pub fn choose_prefill(&self, prompt_tokens: u64) -> Option<WorkerId> {
        self.choose_prefill_if(prompt_tokens, |_| true)
    }

    /// [`choose_prefill`](Self::choose_prefill) among the workers that `usable` accepts.
    pub fn choose_prefill_if(&self, prompt_tokens: u64, usable: impl Fn(&WorkerLoad) -> bool) -> Option<WorkerId> {
        least_prefill::choose(self.ledger.loads().filter(|l| can_hold(l, Role::Prefill, prompt_tokens) && usable(l)))
    }

    /// The worker that runs both phases of a request, or `None`. Books nothing.
    pub fn choose_both(&self, tokens: u64, expected: u64) -> Option<WorkerId> {
        self.choose_both_if(tokens, expected, |_| true)
    }

    /// [`choose_both`](Self::choose_both) among the workers that `usable` accepts.
    pub fn choose_both_if(&self, tokens: u64, expected: u64, usable: impl Fn(&WorkerLoad) -> bool) -> Option<WorkerId> {
        self.least_kv(Role::Both, tokens, expected, usable)
    }

    /// Chooses a decode worker and books the request on it. A request that is booked for decode already stays where
    /// it is: that worker is returned and nothing is booked twice.
    pub fn place_decode(&mut self, request: RequestId, tokens: u64, expected: u64) -> Option<WorkerId> {
        self.ledger.decode_worker(request).or_else(|| {
            let worker = self.choose_decode(tokens, expected)?;
            self.ledger.book_decode(worker, request, tokens, expected);
            Some(worker)
        })
    }

    /// Chooses a prefill worker and books the prompt on it; one that is booked already stays where it is.
    pub fn place_prefill(&mut self, request: RequestId, prompt_tokens: u64) -> Option<WorkerId> {
        self.ledger.prefill_worker(request).or_else(|| {
            let worker = self.choose_prefill(prompt_tokens)?;
            self.ledger.book_prefill(worker, request, prompt_tokens);
            Some(worker)
        })
    }

    /// Chooses a worker for both phases and books them. A request that is booked for decode stays where it is; one that
    /// is booked for prefill alone gets `None`.
    pub fn place_both(&mut self, request: RequestId, tokens: u64, expected: u64) -> Option<WorkerId> {
        self.ledger.decode_worker(request).or_else(|| {
            let worker = self.choose_both(tokens, expected)?;
            self.book_both(worker, request, tokens, expected).then_some(worker)
        })
    }

    /// Books a decode where the caller has chosen. False, and nothing is booked, when the worker is unknown or the
    /// request is booked for decode already.
    pub fn book_decode(&mut self, worker: WorkerId, request: RequestId, tokens: u64, expected: u64) -> bool {
        self.ledger.book_decode(worker, request, tokens, expected)
    }

    /// Books a prefill where the caller has chosen, on the same terms.
    pub fn book_prefill(&mut self, worker: WorkerId, request: RequestId, prompt_tokens: u64) -> bool {
        self.ledger.book_prefill(worker, request, prompt_tokens)
    }

    /// Books both phases on one worker, on the same terms.
    pub fn book_both(&mut self, worker: WorkerId, request: RequestId, tokens: u64, expected: u64) -> bool {
        self.ledger.decode_worker(request).is_none()
            && self.ledger.book_prefill(worker, request, tokens)
            && self.ledger.book_decode(worker, request, tokens, expected)
    }

    /// The placement of `request` on `worker` went out as the worker's message number `seq`. Until then no report can
    /// cover it. Numbers to one worker only grow.
    pub fn sent(&mut self, request: RequestId, worker: WorkerId, seq: u64) {
        self.ledger.sent(request, worker, seq);
    }

    /// The request now holds `tokens` of KV (prompt and outputs). It never shrinks.
    pub fn grow(&mut self, request: RequestId, tokens: u64) {
        self.ledger.grow(request, tokens);
    }

    /// `computed` tokens of the prompt are done.
    pub fn prefill_progress(&mut self, request: RequestId, computed: u64) {
        self.ledger.prefill_progress(request, computed);
    }

    /// The prompt is computed: its prefill booking ends, the decode booking stays.
    pub fn release_prefill(&mut self, request: RequestId) {
        self.ledger.release_prefill(request);
    }

    /// The request left: its bookings end, wherever they are. Returns whether there were any; a second call changes
    /// nothing.
    pub fn release(&mut self, request: RequestId) -> bool {
        self.ledger.release(request)
    }

    /// A worker says how full it is. False, and nothing changes, when the worker is unknown or the report is not newer
    /// than the last one (counted in [`stale_reports`](Self::stale_reports)).
    pub fn report(&mut self, worker: WorkerId, report: Report) -> bool {
        self.ledger.report(worker, report)
    }

    /// Reports dropped because a newer one had come before.
    pub fn stale_reports(&self) -> u64 {
        self.ledger.stale_reports()
    }

    /// Where the request is booked, as (prefill worker, decode worker).
    pub fn placement(&self, request: RequestId) -> (Option<WorkerId>, Option<WorkerId>) {
        (self.ledger.prefill_worker(request), self.ledger.decode_worker(request))
    }

    /// Requests with a booking.
    pub fn num_placed(&self) -> usize {
        self.ledger.len()
    }

    /// One worker's load.
    pub fn load(&self, worker: WorkerId) -> Option<WorkerLoad> {
        self.ledger.load(worker)
    }

    /// The loads of all workers, by id.
    pub fn loads(&self) -> Vec<WorkerLoad> {
        self.ledger.loads().copied().collect()
    }

    /// Every sum in the ledger equals what its bookings add up to.
    pub fn check(&self) -> Result<(), String> {
        self.ledger.check()
    }

    fn least_kv(
        &self,
        role: Role,
        tokens: u64,
        expected: u64,
        usable: impl Fn(&WorkerLoad) -> bool,
    ) -> Option<WorkerId> {
        least_kv::choose(
            self.ledger.loads().filter(|l| can_hold(l, role, tokens) && usable(l)),
            tokens.saturating_add(expected),
        )
    }
}

/// Up, of that role, and large enough when empty for the tokens and one more.
fn can_hold(load: &WorkerLoad, role: Role, tokens: u64) -> bool {
    load.up && load.role == role && tokens < load.capacity
}
