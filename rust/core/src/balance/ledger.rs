//! The one place that books. A booking belongs to a request and is ended once, so a sum can never go below zero.

use super::{Report, WorkerLoad};
use crate::ids::{RequestId, WorkerId};
use crate::message::Role;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// How far a booking is from being part of what its worker reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cover {
    /// Its message has not been sent: no report can know of it.
    Unsent,
    /// Sent as this message; the first report that acknowledges it covers it.
    Sent(u64),
    /// Reports include it.
    Covered,
}

/// Both halves of a booking look alike: an amount on a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Half {
    pub worker: WorkerId,
    pub cover: Cover,
    /// Decode: tokens of KV the request holds. Prefill: prompt tokens still to compute.
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Booking {
    pub decode: Option<Half>,
    /// Tokens the request is expected to hold in the end; meaningful with `decode`.
    expected_total: u64,
    pub prefill: Option<Half>,
    /// Length of the prompt; meaningful with `prefill`.
    prompt: u64,
}

impl Booking {
    pub fn growth(&self) -> u64 {
        self.decode.map_or(0, |half| self.expected_total.saturating_sub(half.tokens))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Account {
    pub load: WorkerLoad,
    /// Parts of `load.queued_prefill`: reported, moved along by what was seen since; and booked.
    prefill_reported: u64,
    pub prefill_booked: u64,
    /// Sent and not covered, by message number.
    pub awaited_decode: BTreeSet<(u64, RequestId)>,
    pub awaited_prefill: BTreeSet<(u64, RequestId)>,
    last_report: u64,
}

impl Account {
    fn refresh(&mut self) {
        self.load.queued_prefill = self.prefill_reported + self.prefill_booked;
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub accounts: BTreeMap<WorkerId, Account>,
    pub bookings: FxHashMap<RequestId, Booking>,
    stale_reports: u64,
}

impl Ledger {
    pub fn add_worker(&mut self, worker: WorkerId, role: Role, capacity: u64) -> bool {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.load.role = role;
            account.load.capacity = capacity;
            account.load.up = true;
            return false;
        }
        let load = WorkerLoad {
            worker,
            role,
            up: true,
            capacity,
            held: 0,
            booked: 0,
            expected_growth: 0,
            queued_prefill: 0,
            placements: 0,
        };
        let account = Account {
            load,
            prefill_reported: 0,
            prefill_booked: 0,
            awaited_decode: BTreeSet::new(),
            awaited_prefill: BTreeSet::new(),
            last_report: 0,
        };
        self.accounts.insert(worker, account);
        true
    }

    pub fn remove_worker(&mut self, worker: WorkerId) -> Vec<RequestId> {
        if self.accounts.remove(&worker).is_none() {
            return Vec::new();
        }
        let on_it = |half: Option<Half>| half.is_some_and(|half| half.worker == worker);
        let mut orphans = Vec::new();
        self.bookings.retain(|request, booking| {
            let (decode, prefill) = (on_it(booking.decode), on_it(booking.prefill));
            if decode || prefill {
                orphans.push(*request);
            }
            booking.decode = booking.decode.filter(|_| !decode);
            booking.prefill = booking.prefill.filter(|_| !prefill);
            booking.decode.is_some() || booking.prefill.is_some()
        });
        orphans.sort_unstable(); // the map's order must not show
        orphans
    }

    pub fn set_health(&mut self, worker: WorkerId, up: bool) -> bool {
        self.accounts.get_mut(&worker).map(|account| account.load.up = up).is_some()
    }

    pub fn book_decode(&mut self, worker: WorkerId, request: RequestId, tokens: u64, expected: u64) -> bool {
        let Some(account) = self.accounts.get_mut(&worker) else {
            return false;
        };
        let booking = self.bookings.entry(request).or_default();
        if booking.decode.is_some() {
            return false;
        }
        booking.decode = Some(Half { worker, cover: Cover::Unsent, tokens });
        booking.expected_total = tokens.saturating_add(expected);
        account.load.booked += tokens;
        account.load.expected_growth += booking.growth();
        account.load.placements += 1;
        true
    }

    pub fn book_prefill(&mut self, worker: WorkerId, request: RequestId, prompt: u64) -> bool {
        let Some(account) = self.accounts.get_mut(&worker) else {
            return false;
        };
        let booking = self.bookings.entry(request).or_default();
        if booking.prefill.is_some() {
            return false;
        }
        booking.prefill = Some(Half { worker, cover: Cover::Unsent, tokens: prompt });
        booking.prompt = prompt;
        account.prefill_booked += prompt;
        account.load.placements += 1;
        account.refresh();
        true
    }

    pub fn sent(&mut self, request: RequestId, worker: WorkerId, seq: u64) {
        let Some(booking) = self.bookings.get_mut(&request) else {
            return;
        };
        let Some(account) = self.accounts.get_mut(&worker) else {
            return;
        };
        let mark = |half: &mut Option<Half>, awaited: &mut BTreeSet<(u64, RequestId)>| {
            if let Some(half) = half.as_mut().filter(|half| half.worker == worker && half.cover == Cover::Unsent) {
                half.cover = Cover::Sent(seq);
                awaited.insert((seq, request));
            }
        };
        mark(&mut booking.decode, &mut account.awaited_decode);
        mark(&mut booking.prefill, &mut account.awaited_prefill);
    }

    pub fn grow(&mut self, request: RequestId, tokens: u64) {
        let Some(booking) = self.bookings.get_mut(&request) else {
            return;
        };
        let growth = booking.growth();
        let Some(half) = booking.decode.as_mut().filter(|half| half.tokens < tokens) else {
            return;
        };
        let more = tokens - half.tokens;
        half.tokens = tokens;
        let load = &mut self.accounts.get_mut(&half.worker).expect("a booking's worker has an account").load;
        match half.cover {
            Cover::Covered => load.held += more,
            _ => load.booked += more,
        }
        load.expected_growth -= growth - booking.growth();
    }

    pub fn prefill_progress(&mut self, request: RequestId, computed: u64) {
        let Some(booking) = self.bookings.get_mut(&request) else {
            return;
        };
        let remaining = booking.prompt.saturating_sub(computed);
        let Some(half) = booking.prefill.as_mut().filter(|half| remaining < half.tokens) else {
            return;
        };
        let done = half.tokens - remaining;
        half.tokens = remaining;
        let account = self.accounts.get_mut(&half.worker).expect("a booking's worker has an account");
        match half.cover {
            Cover::Covered => account.prefill_reported = account.prefill_reported.saturating_sub(done),
            _ => account.prefill_booked -= done,
        }
        account.refresh();
    }

    pub fn release_prefill(&mut self, request: RequestId) {
        self.prefill_progress(request, u64::MAX);
        let Some(booking) = self.bookings.get_mut(&request) else {
            return;
        };
        let Some(half) = booking.prefill.take() else { return };
        if booking.decode.is_none() {
            self.bookings.remove(&request);
        }
        let account = self.accounts.get_mut(&half.worker).expect("a booking's worker has an account");
        account.load.placements -= 1;
        if let Cover::Sent(seq) = half.cover {
            account.awaited_prefill.remove(&(seq, request));
        }
    }

    pub fn release(&mut self, request: RequestId) -> bool {
        if !self.bookings.contains_key(&request) {
            return false;
        }
        self.release_prefill(request);
        let Some(booking) = self.bookings.remove(&request) else {
            return true;
        };
        let growth = booking.growth();
        let Some(half) = booking.decode else { return true };
        let account = self.accounts.get_mut(&half.worker).expect("a booking's worker has an account");
        account.load.placements -= 1;
        account.load.expected_growth -= growth;
        match half.cover {
            // An estimate until the next report says what was really given back (blocks may be shared or fenced).
            Cover::Covered => account.load.held = account.load.held.saturating_sub(half.tokens),
            _ => account.load.booked -= half.tokens,
        }
        if let Cover::Sent(seq) = half.cover {
            account.awaited_decode.remove(&(seq, request));
        }
        true
    }

    pub fn report(&mut self, worker: WorkerId, report: Report) -> bool {
        let Self { accounts, bookings, stale_reports } = self;
        let Some(account) = accounts.get_mut(&worker) else {
            return false;
        };
        if report.seq <= account.last_report {
            *stale_reports += 1;
            return false;
        }
        account.last_report = report.seq;
        let covered = |&(seq, _): &(u64, RequestId)| seq <= report.acked_seq;
        while let Some((_, request)) = account.awaited_decode.first().copied().filter(covered) {
            account.awaited_decode.pop_first();
            let half = bookings.get_mut(&request).and_then(|b| b.decode.as_mut()).expect("awaited means booked");
            half.cover = Cover::Covered;
            account.load.booked -= half.tokens;
        }
        while let Some((_, request)) = account.awaited_prefill.first().copied().filter(covered) {
            account.awaited_prefill.pop_first();
            let half = bookings.get_mut(&request).and_then(|b| b.prefill.as_mut()).expect("awaited means booked");
            half.cover = Cover::Covered;
            account.prefill_booked -= half.tokens;
        }
        account.prefill_reported = report.prefill_tokens;
        account.load.held = report.used_tokens;
        if account.load.role == Role::Both {
            // A prompt that is accepted but not computed has no blocks yet, and will.
            account.load.held += report.prefill_tokens;
        }
        account.refresh();
        true
    }

    pub fn decode_worker(&self, request: RequestId) -> Option<WorkerId> {
        self.bookings.get(&request)?.decode.map(|half| half.worker)
    }

    pub fn prefill_worker(&self, request: RequestId) -> Option<WorkerId> {
        self.bookings.get(&request)?.prefill.map(|half| half.worker)
    }

    pub fn load(&self, worker: WorkerId) -> Option<WorkerLoad> {
        self.accounts.get(&worker).map(|account| account.load)
    }

    pub fn loads(&self) -> impl Iterator<Item = &WorkerLoad> {
        self.accounts.values().map(|account| &account.load)
    }

    pub fn len(&self) -> usize {
        self.bookings.len()
    }

    pub fn stale_reports(&self) -> u64 {
        self.stale_reports
    }
}
