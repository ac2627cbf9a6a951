//! Behaviour of the cluster, one row of the tables in `lifecycle` and `membership` after the other. Time is jumped by
//! the test, actions are compared as text, and `check` runs after every event.

mod admission;
mod inbox;
mod life;
mod loss;
mod membership;

use super::*;
use crate::ids::{Epoch, Incarnation, TransferId};
use crate::message::*;
use crate::request::{FinishReason, Request};
use crate::time::MILLISECOND;
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;

const P: Peer = peer(0, 1);
const D: Peer = peer(1, 1);
const D2: Peer = peer(2, 1);
const B: Peer = peer(3, 1);

const fn peer(worker: u32, incarnation: u64) -> Peer {
    Peer { worker: WorkerId(worker), incarnation: Incarnation(incarnation) }
}

fn attempt(request: u64, number: u32) -> Attempt {
    Attempt { request: RequestId(request), number }
}

fn hello(role: Role) -> Hello {
    Hello {
        role,
        fingerprint: "tiny".into(),
        block_size: 4,
        num_blocks: 32,
        generation: 0,
        max_model_len: 100,
        max_num_seqs: 8,
        address: ByteBuf::new(),
    }
}

fn destination(peer: Peer) -> Destination {
    let missing = TokenRange { start: 0, end: 4 };
    Destination { peer, transfer: TransferId(1), missing, blocks: Vec::new(), block_size: 4 }
}

fn reserved(decode: Peer, attempt: Attempt) -> Message {
    Message::Reserved(Reserved { attempt, destination: destination(decode) })
}

fn refused(attempt: Attempt) -> Message {
    Message::ReserveRefused(ReserveRefused { attempt, free_blocks: 0, needed_blocks: 2 })
}

fn failed(attempt: Attempt) -> Message {
    Message::AttemptFailed(AttemptFailed { attempt, reason: FailReason::LeaseExpired })
}

/// A report of one request.
fn tokens(attempt: Attempt, first: u32, ids: &[u32], end: Option<FinishReason>) -> StepReport {
    StepReport {
        attempts: vec![attempt],
        first_index: vec![first],
        counts: vec![ids.len() as u32],
        token_ids: ids.to_vec(),
        ends: end.into_iter().map(|reason| End { attempt, reason }).collect(),
        ..StepReport::default()
    }
}

fn activated(attempt: Attempt) -> StepReport {
    StepReport { activated: vec![attempt], ..StepReport::default() }
}

/// A cluster under test, its clock, and the numbers of its workers' messages.
struct Bench {
    cluster: Cluster,
    now: Time,
    seqs: BTreeMap<Peer, u64>,
    /// Newest number the cluster used towards each worker.
    sent: BTreeMap<Peer, u64>,
}

impl Bench {
    fn empty() -> Self {
        let cluster = Cluster::new(ClusterConfig::new(Epoch(7))).unwrap();
        Self { cluster, now: 0, seqs: BTreeMap::new(), sent: BTreeMap::new() }
    }

    /// With these workers, the actions of their joining taken.
    fn with(workers: &[(Peer, Role)]) -> Self {
        let mut bench = Self::empty();
        for (peer, role) in workers {
            bench.say(*peer, Message::Hello(hello(*role)));
        }
        bench
    }

    /// One prefill and one decode worker.
    fn split() -> Self {
        Self::with(&[(P, Role::Prefill), (D, Role::Decode)])
    }

    fn event(&mut self, event: ClusterEvent) -> Vec<String> {
        self.cluster.handle(event, self.now).unwrap();
        self.actions()
    }

    fn submit(&mut self, id: u64, prompt: usize, max_tokens: u32) -> Vec<String> {
        self.event(ClusterEvent::Submit(Request::new(id, &vec![5; prompt], max_tokens)))
    }

    fn try_submit(&mut self, request: Request) -> String {
        let before = (self.cluster.num_requests(), self.cluster.num_waiting());
        let error = self.cluster.handle(ClusterEvent::Submit(request), self.now).unwrap_err();
        assert_eq!((self.cluster.num_requests(), self.cluster.num_waiting()), before);
        assert!(self.actions().is_empty());
        error.to_string()
    }

    fn abort(&mut self, id: u64) -> Vec<String> {
        self.event(ClusterEvent::Abort(RequestId(id)))
    }

    fn envelope(&mut self, from: Peer, body: Message) -> Envelope {
        let seq = self.seqs.entry(from).or_default();
        *seq += 1;
        Envelope { from: Party::Worker(from), to: Incarnation(0), epoch: Epoch(7), seq: *seq, body }
    }

    fn say(&mut self, from: Peer, body: Message) -> Vec<String> {
        let envelope = self.envelope(from, body);
        self.event(ClusterEvent::Message(envelope))
    }

    fn report(&mut self, from: Peer, report: StepReport) -> Vec<String> {
        self.say(from, Message::StepReport(report))
    }

    fn load(&mut self, from: Peer, used_blocks: u32) -> Vec<String> {
        let acked_seq = self.sent.get(&from).copied().unwrap_or(0);
        self.say(from, Message::Load(Load { acked_seq, used_blocks, ..Load::default() }))
    }

    fn dead(&mut self, peer: Peer) -> Vec<String> {
        self.event(ClusterEvent::WorkerDead(peer))
    }

    /// Lets time pass, timer by timer.
    fn wait_ms(&mut self, ms: u64) -> Vec<String> {
        let until = self.now + ms * MILLISECOND;
        let mut actions = Vec::new();
        while let Some(at) = self.cluster.poll_timeout().filter(|at| *at <= until) {
            self.now = at.max(self.now);
            self.cluster.handle_timeout(self.now);
            actions.extend(self.actions());
        }
        self.now = until;
        actions
    }

    /// Lets time pass while these workers keep reporting.
    fn wait_ms_hearing(&mut self, ms: u64, speakers: &[(Peer, u32)]) -> Vec<String> {
        let mut actions = Vec::new();
        for _ in 0..ms / 200 {
            for (peer, used_blocks) in speakers {
                actions.extend(self.load(*peer, *used_blocks));
            }
            actions.extend(self.wait_ms(200));
        }
        actions
    }

    fn actions(&mut self) -> Vec<String> {
        self.cluster.check().unwrap();
        let mut texts = Vec::new();
        while let Some(action) = self.cluster.poll_action() {
            if let ClusterAction::Send { to, message } = &action {
                let sent = self.sent.entry(*to).or_default();
                *sent += 1;
                assert_eq!((message.seq, message.epoch), (*sent, Epoch(7)), "messages are numbered one by one");
            }
            texts.push(action.to_string());
        }
        texts
    }

    /// Brings request 1 (prompt 4, at most 8 tokens) on P and D into a phase.
    fn bring_to(phase: Phase) -> Self {
        let mut bench = Self::with(&[(P, Role::Prefill), (D, Role::Decode)]);
        if phase == Phase::Running {
            bench = Self::with(&[(B, Role::Both)]);
        }
        if phase == Phase::Queued {
            bench = Self::empty();
        }
        bench.submit(1, 4, 8);
        if matches!(phase, Phase::Prefilling | Phase::HandedOff | Phase::Decoding) {
            bench.say(D, reserved(D, attempt(1, 1)));
        }
        if matches!(phase, Phase::HandedOff | Phase::Decoding) {
            bench.report(P, tokens(attempt(1, 1), 0, &[10], None));
        }
        if phase == Phase::Decoding {
            bench.report(D, activated(attempt(1, 1)));
        }
        assert_eq!(bench.phase(), phase);
        bench
    }

    fn phase(&self) -> Phase {
        self.cluster.requests()[0].phase
    }

    /// Nothing is left of any request, and no worker is believed to owe one anything.
    fn assert_idle(&mut self) {
        assert_eq!((self.cluster.num_requests(), self.cluster.num_waiting()), (0, 0));
        for load in self.cluster.loads() {
            assert_eq!((load.booked, load.expected_growth, load.queued_prefill, load.placements), (0, 0, 0, 0));
        }
    }
}

const PLACED: [Phase; 5] = [Phase::Reserving, Phase::Prefilling, Phase::HandedOff, Phase::Decoding, Phase::Running];
