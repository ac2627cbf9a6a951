//! The language of the cluster's golden files.
//!
//! | command | meaning |
//! |---|---|
//! | `config FIELD=N ...` | limits, before anything else |
//! | `wait MS` | time passes; timers fire when they are due |
//! | `submit ID PROMPT_TOKENS MAX_TOKENS`, `abort ID`, `dead PEER` | events of the host |
//! | `hello PEER ROLE [blocks=N] [len=N] [generation=N] [fingerprint=WORD]` | a worker introduces itself (blocks of 16 tokens) |
//! | `load PEER used=N [acked=N] [prefill=N]` | without `acked`: everything sent so far |
//! | `reserved PEER ATTEMPT`, `refused PEER ATTEMPT` | answers to `reserve` |
//! | `rejected PEER ATTEMPT`, `failed PEER ATTEMPT REASON` | ends of a try |
//! | `report PEER [progress=ATTEMPT:N] [activated=ATTEMPT] [ATTEMPT@INDEX=T,T] [end=ATTEMPT:REASON]` | a step |
//! | `repeat` | the last message once more, number and all |
//! | `loads`, `requests`, `stats` | views; `stats` shows what is not zero |
//!
//! A peer is `wID#INCARNATION`, an attempt `REQUEST.NUMBER`. Messages are numbered by the test as they should be.

use super::runner::Machine;
use super::words::{attempt, number, peer};
use pdsched_core::cluster::{Cluster, ClusterConfig, ClusterEvent};
use pdsched_core::ids::{Epoch, Incarnation, Peer, RequestId, TransferId};
use pdsched_core::message::*;
use pdsched_core::request::{FinishReason, Request};
use pdsched_core::time::{MILLISECOND, Time};
use std::collections::BTreeMap;
use std::fmt::Write;

const EPOCH: Epoch = Epoch(1);

/// A cluster driven by text.
pub struct ClusterMachine {
    cluster: Cluster,
    now: Time,
    /// Newest message from each worker, and to it.
    seqs: BTreeMap<Peer, (u64, u64)>,
    last: Option<Envelope>,
}

impl Default for ClusterMachine {
    fn default() -> Self {
        let cluster = Cluster::new(ClusterConfig::new(EPOCH)).unwrap();
        Self { cluster, now: 0, seqs: BTreeMap::new(), last: None }
    }
}

impl Machine for ClusterMachine {
    fn exec(&mut self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let command = words.next().unwrap();
        let words: Vec<&str> = words.collect();
        match (command, words.as_slice()) {
            ("config", fields) => self.config(fields),
            ("wait", [ms]) => return self.wait(number(ms)),
            ("submit", [id, prompt, max_tokens]) => {
                let prompt = vec![0; number(prompt) as usize];
                let request = Request::new(number(id), &prompt, number(max_tokens) as u32);
                if let Err(error) = self.cluster.handle(ClusterEvent::Submit(request), self.now) {
                    return error.to_string();
                }
            }
            ("abort", [id]) => self.event(ClusterEvent::Abort(RequestId(number(id)))),
            ("dead", [who]) => self.event(ClusterEvent::WorkerDead(peer(who))),
            ("repeat", []) => self.event(ClusterEvent::Message(self.last.clone().expect("something to repeat"))),
            ("loads", []) => return self.loads(),
            ("requests", []) => return self.requests(),
            ("stats", []) => return self.stats(),
            (_, [who, rest @ ..]) => {
                let body = self.message(command, peer(who), rest).unwrap_or_else(|| panic!("cannot read: {line}"));
                self.say(peer(who), body);
            }
            _ => panic!("cannot read: {line}"),
        }
        self.actions()
    }
}

impl ClusterMachine {
    fn config(&mut self, fields: &[&str]) {
        let mut config = ClusterConfig::new(EPOCH);
        for field in fields {
            let (name, value) = field.split_once('=').expect("FIELD=N");
            match name {
                "max_attempts" => config.max_attempts = number(value) as u32,
                "max_queue" => config.max_queue = number(value) as u32,
                "expected_output_tokens" => config.expected_output_tokens = number(value) as u32,
                _ => panic!("no field {name} here"),
            }
        }
        self.cluster = Cluster::new(config).unwrap();
    }

    fn event(&mut self, event: ClusterEvent) {
        self.cluster.handle(event, self.now).unwrap();
    }

    fn say(&mut self, from: Peer, body: Message) {
        let seqs = self.seqs.entry(from).or_default();
        seqs.0 += 1;
        let envelope = Envelope { from: Party::Worker(from), to: Incarnation(0), epoch: EPOCH, seq: seqs.0, body };
        // What the cluster reads has been bytes before.
        let envelope = Envelope::decode(&envelope.encode()).unwrap();
        self.last = Some(envelope.clone());
        self.event(ClusterEvent::Message(envelope));
    }

    fn wait(&mut self, ms: u64) -> String {
        let until = self.now + ms * MILLISECOND;
        let mut text = String::new();
        while let Some(at) = self.cluster.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.cluster.handle_timeout(self.now);
            text.push_str(&self.actions());
        }
        self.now = until;
        text
    }

    fn actions(&mut self) -> String {
        self.cluster.check().unwrap();
        let mut text = String::new();
        while let Some(action) = self.cluster.poll_action() {
            if let pdsched_core::cluster::ClusterAction::Send { to, message } = &action {
                self.seqs.entry(*to).or_default().1 = message.seq;
            }
            writeln!(text, "{action}").unwrap();
        }
        text
    }

    fn message(&self, command: &str, from: Peer, words: &[&str]) -> Option<Message> {
        Some(match (command, words) {
            ("hello", [role, rest @ ..]) => Message::Hello(hello(role, rest)?),
            ("load", fields) => {
                let mut load = Load { acked_seq: self.seqs.get(&from)?.1, ..Load::default() };
                for field in fields {
                    match field.split_once('=')? {
                        ("acked", value) => load.acked_seq = number(value),
                        ("used", value) => load.used_blocks = number(value) as u32,
                        ("prefill", value) => load.prefill_tokens = number(value),
                        _ => return None,
                    }
                }
                Message::Load(load)
            }
            ("reserved", [of]) => {
                let (transfer, missing) = (TransferId(1), TokenRange { start: 0, end: 1 });
                let destination = Destination { peer: from, transfer, missing, blocks: Vec::new(), block_size: 16 };
                Message::Reserved(Reserved { attempt: attempt(of), destination })
            }
            ("refused", [of]) => {
                Message::ReserveRefused(ReserveRefused { attempt: attempt(of), free_blocks: 0, needed_blocks: 1 })
            }
            ("rejected", [of]) => {
                Message::Rejected(Rejected { attempt: attempt(of), reason: "the worker says so".into() })
            }
            ("failed", [of, reason]) => {
                let reasons = [FailReason::LeaseExpired, FailReason::TransferFailed, FailReason::StepFailed];
                let reason = reasons.into_iter().find(|known| known.as_str() == *reason)?;
                Message::AttemptFailed(AttemptFailed { attempt: attempt(of), reason })
            }
            ("report", entries) => Message::StepReport(step_report(entries)?),
            _ => return None,
        })
    }

    fn loads(&self) -> String {
        let mut text = String::new();
        for load in self.cluster.loads() {
            writeln!(
                text,
                "w{} {} held={} booked={} growth={} prefill={} occupancy={:.2}",
                load.worker,
                if load.up { "up" } else { "silent" },
                load.held,
                load.booked,
                load.expected_growth,
                load.queued_prefill,
                load.occupancy()
            )
            .unwrap();
        }
        text
    }

    fn requests(&self) -> String {
        let mut text = String::new();
        for request in self.cluster.requests() {
            let (phase, outputs, failures) = (request.phase, request.outputs, request.failures);
            writeln!(text, "{} {phase} outputs={outputs} failures={failures}", request.attempt).unwrap();
        }
        text
    }

    fn stats(&self) -> String {
        let text = format!("{:?}", self.cluster.stats());
        let fields = text.trim_start_matches("ClusterStats { ").trim_end_matches(" }").split(", ");
        fields.filter(|field| !field.ends_with(": 0")).fold(String::new(), |text, field| text + field + "\n")
    }
}

fn hello(role: &str, fields: &[&str]) -> Option<Hello> {
    let role = [Role::Prefill, Role::Decode, Role::Both].into_iter().find(|known| known.as_str() == role)?;
    let mut hello = Hello {
        role,
        fingerprint: "tiny".into(),
        block_size: 16,
        num_blocks: 64,
        generation: 0,
        max_model_len: 4096,
        max_num_seqs: 8,
        address: Default::default(),
    };
    for field in fields {
        match field.split_once('=')? {
            ("blocks", value) => hello.num_blocks = number(value) as u32,
            ("generation", value) => hello.generation = number(value) as u32,
            ("len", value) => hello.max_model_len = number(value) as u32,
            ("fingerprint", value) => hello.fingerprint = value.into(),
            _ => return None,
        }
    }
    Some(hello)
}

fn step_report(entries: &[&str]) -> Option<StepReport> {
    let mut report = StepReport::default();
    for entry in entries {
        match entry.split_once('=')? {
            ("progress", value) => {
                let (of, computed) = value.split_once(':')?;
                report.progress.push((attempt(of), number(computed) as u32));
            }
            ("activated", value) => report.activated.push(attempt(value)),
            ("end", value) => {
                let (of, reason) = value.split_once(':')?;
                let reasons = [FinishReason::Stop, FinishReason::Length, FinishReason::Capacity];
                let reason = reasons.into_iter().find(|known| known.as_str() == reason)?;
                report.ends.push(End { attempt: attempt(of), reason });
            }
            (head, value) => {
                let (of, index) = head.split_once('@')?;
                let tokens: Vec<u32> = value.split(',').map(|token| number(token) as u32).collect();
                report.attempts.push(attempt(of));
                report.first_index.push(number(index) as u32);
                report.counts.push(tokens.len() as u32);
                report.token_ids.extend(tokens);
            }
        }
    }
    Some(report)
}
