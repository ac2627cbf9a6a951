//! A cluster among fake workers, what can happen to it, and what must be true of its actions.

use super::fake_worker::*;
use super::op::Op;
use pdsched_core::cluster::{Cluster, ClusterAction, ClusterConfig, ClusterEvent};
use pdsched_core::ids::{Attempt, Epoch, Incarnation, Peer, RequestId, TransferId, WorkerId};
use pdsched_core::message::*;
use pdsched_core::request::{FinishReason, Request};
use pdsched_core::time::{MILLISECOND, SECOND, Time};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const EPOCH: Epoch = Epoch(1);

pub struct World {
    pub cluster: Cluster,
    now: Time,
    workers: Vec<FakeWorker>,
    /// First outputs on their way from the prefill side to the decode side.
    handed_off: BTreeMap<Attempt, u32>,
    pub requests: BTreeMap<RequestId, Request>,
    emitted: BTreeMap<RequestId, Vec<u32>>,
    pub finished: BTreeMap<RequestId, FinishReason>,
    log: Vec<(Time, Option<ClusterEvent>)>,
    actions: Vec<ClusterAction>,
}

impl World {
    pub fn new(roles: &[Role]) -> Self {
        let mut world = Self {
            cluster: Cluster::new(ClusterConfig::new(EPOCH)).unwrap(),
            now: 0,
            workers: roles.iter().map(|role| FakeWorker { role: Some(*role), ..Default::default() }).collect(),
            handed_off: BTreeMap::new(),
            requests: BTreeMap::new(),
            emitted: BTreeMap::new(),
            finished: BTreeMap::new(),
            log: Vec::new(),
            actions: Vec::new(),
        };
        (0..roles.len()).for_each(|w| world.apply(&Op::Start(w)));
        world
    }

    fn peer(&self, worker: usize) -> Peer {
        Peer { worker: WorkerId(worker as u32), incarnation: Incarnation(self.workers[worker].incarnation) }
    }

    fn is_alive(&self, worker: usize) -> bool {
        self.workers[worker].epoch != Epoch(u64::MAX)
    }

    fn acts(&self, worker: usize) -> bool {
        self.is_alive(worker) && !self.workers[worker].frozen
    }

    fn event(&mut self, event: ClusterEvent) {
        self.log.push((self.now, Some(event.clone())));
        let is_submit = matches!(event, ClusterEvent::Submit(_));
        let result = self.cluster.handle(event, self.now);
        assert!(result.is_ok() || is_submit, "{result:?}");
        self.carry_out();
    }

    fn carry_out(&mut self) {
        self.cluster.check().unwrap();
        while let Some(action) = self.cluster.poll_action() {
            self.actions.push(action.clone());
            match action {
                ClusterAction::Send { to, message } => {
                    let worker = to.worker.0 as usize;
                    if self.is_alive(worker) && self.peer(worker) == to {
                        self.workers[worker].inbox.push_back(message);
                    }
                }
                ClusterAction::Emit { request, index, token_ids, .. } => {
                    assert!(!self.finished.contains_key(&request), "{request}: output after the end");
                    let emitted = self.emitted.get_mut(&request).expect("a request that was taken");
                    assert_eq!(index as usize, emitted.len(), "{request}: gap or repeat");
                    emitted.extend(&token_ids);
                    for (i, id) in emitted.iter().enumerate() {
                        assert_eq!(*id, token(request, i as u32));
                    }
                }
                ClusterAction::Finish { request, reason, .. } => {
                    assert!(self.finished.insert(request, reason).is_none(), "{request} ended twice");
                    let (emitted, max) = (self.emitted[&request].len(), self.requests[&request].max_tokens as usize);
                    assert!(reason != FinishReason::Length || emitted == max, "{request}: {emitted} of {max}");
                }
                _ => {}
            }
        }
    }

    fn wait(&mut self, ms: u64) {
        let until = self.now + ms * MILLISECOND;
        while let Some(at) = self.cluster.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.log.push((self.now, None));
            self.cluster.handle_timeout(self.now);
            self.carry_out();
        }
        self.now = until;
    }

    fn submit(&mut self, prompt: u32, max_tokens: u32, reuse: bool) {
        let free: Vec<u64> = self.finished.keys().map(|id| id.0).filter(|id| *id > 0).collect();
        let new = self.requests.keys().next_back().map_or(1, |id| id.0 + 1);
        let id = if reuse && !free.is_empty() { free[0] } else { new };
        let request = Request::new(id, &vec![1; prompt as usize], max_tokens);
        let before = (self.requests.get(&request.id).cloned(), self.finished.get(&request.id).copied());
        self.finished.remove(&request.id);
        self.requests.insert(request.id, request.clone());
        self.emitted.insert(request.id, Vec::new());
        self.event(ClusterEvent::Submit(request.clone()));
        assert!(before.0.is_none() || before.1.is_some());
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Submit { prompt, max_tokens, reuse } => self.submit(*prompt, *max_tokens, *reuse),
            Op::Abort(index) => {
                let ids: Vec<RequestId> = self.requests.keys().copied().chain([RequestId(u64::MAX)]).collect();
                self.event(ClusterEvent::Abort(*index.get(&ids)));
            }
            Op::Wait(ms) => self.wait(*ms),
            Op::Read(w) if self.acts(*w) => self.read(*w, false),
            Op::RefuseNext(w) if self.acts(*w) => self.read(*w, true),
            Op::Deliver(w) => {
                if let Some(envelope) = self.workers[*w].outbox.pop_front() {
                    self.event(ClusterEvent::Message(envelope));
                }
            }
            Op::Step(w) if self.acts(*w) => self.step(*w),
            Op::Load(w) if self.acts(*w) => {
                let (peer, worker) = (self.peer(*w), &mut self.workers[*w]);
                let (acked_seq, used_blocks) = (worker.heard_seq, worker.used_blocks());
                worker.say(peer, Message::Load(Load { acked_seq, used_blocks, ..Load::default() }));
            }
            Op::Fail(w, index) if self.acts(*w) => self.fail(*w, index),
            Op::Repeat(w) => {
                // On the wire, after everything that was sent since.
                if let Some(envelope) =
                    self.workers[*w].last_sent.clone().filter(|_| self.workers[*w].outbox.is_empty())
                {
                    self.event(ClusterEvent::Message(envelope));
                }
            }
            Op::LoseFromWorker(w) => drop(self.workers[*w].outbox.pop_front()),
            Op::LoseToWorker(w) => drop(self.workers[*w].inbox.pop_front()),
            Op::Kill(w) if self.is_alive(*w) => {
                let dead = self.peer(*w);
                self.workers[*w].epoch = Epoch(u64::MAX);
                self.workers[*w].forget();
                self.event(ClusterEvent::WorkerDead(dead));
            }
            Op::Start(w) if !self.is_alive(*w) || self.workers[*w].incarnation == 0 => {
                let (role, incarnation) = (self.workers[*w].role, self.workers[*w].incarnation + 1);
                let outbox = std::mem::take(&mut self.workers[*w].outbox); // the dead one's last words
                self.workers[*w] = FakeWorker { role, incarnation, outbox, ..Default::default() };
                let peer = self.peer(*w);
                self.workers[*w].hello(peer);
            }
            Op::Forget(w) if self.acts(*w) => {
                let peer = self.peer(*w);
                self.workers[*w].hello(peer);
            }
            Op::Freeze(w) => self.workers[*w].frozen ^= true,
            _ => {}
        }
    }

    /// A worker reads one message. One that misses a message has no way to know what it was, and starts over.
    fn read(&mut self, w: usize, refuse: bool) {
        let (peer, now) = (self.peer(w), self.now);
        let worker = &mut self.workers[w];
        let Some(envelope) = worker.inbox.pop_front() else {
            return;
        };
        let lost = envelope.seq != worker.heard_seq + 1;
        worker.heard_seq = envelope.seq;
        if lost {
            worker.epoch = EPOCH;
            return worker.hello(peer);
        }
        match envelope.body {
            Message::Welcome(_) => worker.epoch = envelope.epoch,
            Message::Reserve(reserve) => {
                let (attempt, free_blocks) = (reserve.attempt, BLOCKS.saturating_sub(worker.used_blocks()));
                let needed_blocks = reserve.request.max_total().div_ceil(BLOCK);
                if refuse || needed_blocks > free_blocks {
                    return worker
                        .say(peer, Message::ReserveRefused(ReserveRefused { attempt, free_blocks, needed_blocks }));
                }
                worker.reserved.insert(attempt, (reserve.request, now));
                let missing = TokenRange { start: 0, end: 1 };
                let (transfer, blocks) = (TransferId(1), Vec::new());
                let destination = Destination { peer, transfer, missing, blocks, block_size: BLOCK };
                worker.say(peer, Message::Reserved(Reserved { attempt, destination }));
            }
            Message::Prefill(prefill) => drop(worker.prefilling.insert(prefill.attempt, prefill.request)),
            Message::Decode(decode) => {
                let next = decode.request.num_known_outputs();
                worker.decoding.insert(decode.attempt, (decode.request, next));
            }
            Message::Abort(attempt) => {
                worker.reserved.remove(&attempt);
                worker.prefilling.remove(&attempt);
                worker.decoding.remove(&attempt);
            }
            _ => {}
        }
    }

    /// One step: a prompt is finished and handed off, hand-offs arrive, every running request gets a token.
    fn step(&mut self, w: usize) {
        let (peer, now) = (self.peer(w), self.now);
        let worker = &mut self.workers[w];
        let mut report = StepReport::default();
        let mut add = |attempt: Attempt, request: &Request, index: u32| {
            report.attempts.push(attempt);
            report.first_index.push(index);
            report.counts.push(1);
            report.token_ids.push(token(attempt.request, index));
            let is_end = index + 1 == request.max_tokens;
            if is_end {
                report.ends.push(End { attempt, reason: FinishReason::Length });
            }
            is_end
        };
        if let Some((attempt, request)) = worker.prefilling.pop_first() {
            let index = request.num_known_outputs();
            if !add(attempt, &request, index) {
                self.handed_off.insert(attempt, index);
            }
        }
        worker.decoding.retain(|attempt, (request, next)| {
            *next += 1;
            !add(*attempt, request, *next - 1)
        });
        let arrived: Vec<Attempt> =
            worker.reserved.keys().filter(|a| self.handed_off.contains_key(a)).copied().collect();
        for attempt in arrived {
            let index = self.handed_off[&attempt];
            let (request, _) = worker.reserved.remove(&attempt).unwrap();
            add(attempt, &request, index);
            worker.decoding.insert(attempt, (request, index + 1));
            report.activated.push(attempt);
        }
        if !report.attempts.is_empty() {
            worker.say(peer, Message::StepReport(report));
        }
        let lapsed =
            worker.reserved.iter().find(|(_, (_, since))| *since + 2 * SECOND <= now).map(|(attempt, _)| *attempt);
        if let Some(attempt) = lapsed {
            worker.reserved.remove(&attempt);
            let reason = FailReason::LeaseExpired;
            worker.say(peer, Message::AttemptFailed(AttemptFailed { attempt, reason }));
        }
    }

    fn fail(&mut self, w: usize, index: &prop::sample::Index) {
        let (peer, worker) = (self.peer(w), &mut self.workers[w]);
        let all: BTreeSet<Attempt> =
            worker.reserved.keys().chain(worker.prefilling.keys()).chain(worker.decoding.keys()).copied().collect();
        if all.is_empty() {
            return;
        }
        let attempt = *index.get(&all.into_iter().collect::<Vec<_>>());
        worker.reserved.remove(&attempt);
        worker.prefilling.remove(&attempt);
        worker.decoding.remove(&attempt);
        let reason = FailReason::TransferFailed;
        worker.say(peer, Message::AttemptFailed(AttemptFailed { attempt, reason }));
    }

    /// Everybody alive, awake and talking, until nothing is left to do.
    pub fn settle(&mut self) {
        for w in 0..self.workers.len() {
            self.workers[w].frozen = false;
            self.apply(&Op::Start(w));
        }
        for _ in 0..2_000 {
            for w in 0..self.workers.len() {
                while !self.workers[w].inbox.is_empty() {
                    self.apply(&Op::Read(w));
                }
                self.apply(&Op::Step(w));
                self.apply(&Op::Load(w));
                while !self.workers[w].outbox.is_empty() {
                    self.apply(&Op::Deliver(w));
                }
            }
            if self.cluster.num_requests() == 0 {
                return;
            }
            self.wait(200);
        }
        panic!("not settled: {:?}", self.cluster.requests());
    }

    pub fn replay(&self) {
        let mut cluster = Cluster::new(ClusterConfig::new(EPOCH)).unwrap();
        let mut actions = Vec::new();
        for (now, event) in &self.log {
            match event {
                Some(event) => drop(cluster.handle(event.clone(), *now)),
                None => cluster.handle_timeout(*now),
            }
            actions.extend(std::iter::from_fn(|| cluster.poll_action()));
        }
        assert_eq!(actions, self.actions);
        assert_eq!(cluster.stats(), self.cluster.stats());
    }
}
