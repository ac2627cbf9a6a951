//! The language of the workers' golden files: several workers, a cluster that says what the test says.
//!
//! | command | meaning |
//! |---|---|
//! | `worker PEER ROLE [FIELD=N ...] [kill_after=MS]` | a worker starts, see [`scheduler_config`] |
//! | `welcome W [silence=MS] [epoch=N]` | the cluster accepts it |
//! | `meet W W` | the cluster tells two workers of each other |
//! | `reserve W ATTEMPT TEXT MAX_TOKENS source=W [FIELD=...]` | lease of 300 ms |
//! | `prefill W ATTEMPT` | what was reserved last for the attempt, at its destination |
//! | `decode W ATTEMPT TEXT MAX_TOKENS`, `abort W ATTEMPT`, `heartbeat W` | other messages of the cluster |
//! | `again W`, `skip W` | the cluster's last message once more; one of its messages is lost |
//! | `gone W PEER`, `dead W PEER` | the cluster says so; the host has proven it |
//! | `step W`, `complete W STEP TOKEN ...`, `fail W STEP` | its runner |
//! | `copied W PEER/TRANSFER CHUNK [lost]` | its channel |
//! | `deliver W W [N\|all]`, `drop W W`, `repeat W W` | messages between workers: the oldest, lost, the last once more |
//! | `freeze W`, `thaw W` | its clock stands still, and goes on |
//! | `wait MS` | time passes; timers fire when they are due |
//! | `state W`, `stats W` | views |
//!
//! `W` is a worker's number. Messages to other workers wait until they are delivered.

use super::runner::Machine;
use super::words::{attempt, counters, number, peer, request, scheduler_config, small};
use pdsched_core::ids::{Attempt, Epoch, Peer, StepId, TransferId, WorkerId};
use pdsched_core::message::*;
use pdsched_core::request::Request;
use pdsched_core::time::{MILLISECOND, SECOND, Time};
use pdsched_core::worker::{Worker, WorkerAction, WorkerConfig, WorkerEvent};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

const LEASE: u64 = 300 * MILLISECOND;

/// What the cluster has said to a worker.
#[derive(Default)]
struct Spoken {
    epoch: Epoch,
    seq: u64,
    last: Option<Envelope>,
}

/// Workers driven by text.
#[derive(Default)]
pub struct WorkersMachine {
    workers: BTreeMap<u32, Worker>,
    now: Time,
    frozen: BTreeSet<u32>,
    spoken: BTreeMap<u32, Spoken>,
    /// Between workers: under way, and the last one delivered.
    mail: BTreeMap<(u32, u32), (VecDeque<Envelope>, Option<Envelope>)>,
    requests: BTreeMap<Attempt, Request>,
    destinations: BTreeMap<Attempt, Destination>,
}

impl Machine for WorkersMachine {
    fn exec(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let text = self.command(&words).unwrap_or_else(|| panic!("cannot read: {line}"));
        self.workers.values().for_each(|worker| worker.check().unwrap());
        text
    }
}

impl WorkersMachine {
    fn command(&mut self, words: &[&str]) -> Option<String> {
        match *words {
            ["worker", who, role, ref fields @ ..] => return Some(self.start(peer(who), role, fields)),
            ["wait", ms] => return Some(self.wait(number(ms))),
            ["meet", a, b] => return Some(self.meet(small(a), small(b))),
            ["deliver", from, to, ref count @ ..] => {
                let connection = (small(from), small(to));
                let all = || self.mail.get(&connection).map_or(0, |mail| mail.0.len() as u64);
                let count = match count {
                    ["all"] => all(),
                    [count] => number(count),
                    _ => 1,
                };
                return Some(self.deliver(connection, count));
            }
            ["freeze", who] => return self.frozen.insert(small(who)).then(String::new),
            ["thaw", who] => return self.frozen.remove(&small(who)).then(String::new),
            ["repeat", from, to] => {
                let (from, to) = (small(from), small(to));
                let message = self.mail.get(&(from, to))?.1.clone()?;
                return Some(self.event(to, WorkerEvent::Message(message)));
            }
            ["drop", from, to] => {
                let message = self.mail.get_mut(&(small(from), small(to)))?.0.pop_front()?;
                return Some(format!("lost: {}", message.body));
            }
            _ => {}
        }
        let [command, to, ref rest @ ..] = *words else {
            return None;
        };
        self.of_worker(command, small(to), rest)
    }

    fn of_worker(&mut self, command: &str, to: u32, words: &[&str]) -> Option<String> {
        let now = self.now;
        let worker = self.workers.get_mut(&to)?;
        Some(match (command, words) {
            ("again", []) => {
                let message = self.spoken.get(&to)?.last.clone()?;
                self.event(to, WorkerEvent::Message(message))
            }
            ("skip", []) => {
                self.spoken.get_mut(&to)?.seq += 1;
                String::new()
            }
            ("dead", [who]) => self.event(to, WorkerEvent::Dead(peer(who))),
            ("copied", [transfer, chunk, rest @ ..]) => {
                let (who, transfer) = transfer.split_once('/')?;
                let done = WorkerEvent::TransferDone {
                    peer: peer(who),
                    transfer: TransferId(number(transfer)),
                    chunk: small(chunk),
                    ok: rest.is_empty(),
                };
                self.event(to, done)
            }
            ("step", []) => match worker.schedule(now) {
                Some(step) => {
                    let plan = worker.scheduler().step(step)?;
                    let (tokens, samples) = (plan.num_tokens, plan.num_samples);
                    format!("step {step}: {tokens} tokens, {samples} sampled\n{}", self.actions(to))
                }
                None => format!("nothing to plan\n{}", self.actions(to)),
            },
            ("complete", [step, tokens @ ..]) => {
                let tokens: Vec<i64> = tokens.iter().map(|token| token.parse().unwrap()).collect();
                worker.complete(StepId(number(step)), &tokens, now).unwrap();
                self.actions(to)
            }
            ("fail", [step]) => {
                worker.fail(StepId(number(step)), now).unwrap();
                self.actions(to)
            }
            ("state", []) => {
                let (scheduler, pool) = (worker.scheduler(), worker.scheduler().pool());
                let (free, used, idle) = (pool.num_free(), pool.num_used(), worker.is_idle());
                let unfinished = scheduler.num_unfinished();
                format!("w{to} free={free} used={used} unfinished={unfinished} idle={idle}")
            }
            ("stats", []) => counters(&format!("{:?}", worker.stats())),
            _ => self.of_cluster(command, to, words)?,
        })
    }

    fn of_cluster(&mut self, command: &str, to: u32, words: &[&str]) -> Option<String> {
        let body = match (command, words) {
            ("welcome", fields) => return Some(self.welcome(to, fields)),
            ("heartbeat", []) => Message::Heartbeat,
            ("abort", [of]) => Message::Abort(attempt(of)),
            ("gone", [who]) => Message::PeerDead(peer(who)),
            ("decode", [of, rest @ ..]) => {
                Message::Decode(Decode { attempt: attempt(of), request: request(attempt(of).request.0, rest) })
            }
            ("reserve", [of, rest @ ..]) => {
                let is_source = |word: &&str| word.starts_with("source=");
                let source = rest.iter().copied().find(is_source)?.strip_prefix("source=")?;
                let rest: Vec<&str> = rest.iter().copied().filter(|word| !is_source(word)).collect();
                let (attempt, source) = (attempt(of), self.peer_of(small(source)));
                let request = request(attempt.request.0, &rest);
                self.requests.insert(attempt, request.clone());
                Message::Reserve(Reserve { attempt, request, source, lease_ns: LEASE })
            }
            ("prefill", [of]) => {
                let attempt = attempt(of);
                Message::Prefill(Prefill {
                    attempt,
                    request: self.requests[&attempt].clone(),
                    destination: self.destinations.get(&attempt)?.clone(),
                    lease_ns: LEASE,
                })
            }
            _ => return None,
        };
        Some(self.say(to, body))
    }

    fn start(&mut self, me: Peer, role: &str, fields: &[&str]) -> String {
        let role =
            [Role::Prefill, Role::Decode, Role::Both].into_iter().find(|known| known.as_str() == role).expect("a role");
        let (kill, fields): (Vec<&str>, Vec<&str>) = fields.iter().partition(|field| field.starts_with("kill_after="));
        let mut config = WorkerConfig::new(scheduler_config(&fields), me, role);
        if let [kill] = kill[..] {
            config.kill_after_ns = number(kill.trim_start_matches("kill_after=")) * MILLISECOND;
        }
        let mut worker = Worker::new(config).unwrap();
        worker.handle_timeout(self.now);
        self.workers.insert(me.worker.0, worker);
        self.spoken.insert(me.worker.0, Spoken::default());
        self.actions(me.worker.0)
    }

    fn welcome(&mut self, to: u32, fields: &[&str]) -> String {
        let (mut silence, mut epoch) = (600 * SECOND, Epoch(1));
        for field in fields {
            match field.split_once('=').expect("FIELD=N") {
                ("silence", value) => silence = number(value) * MILLISECOND,
                ("epoch", value) => epoch = Epoch(number(value)),
                _ => panic!("no field {field} here"),
            }
        }
        let spoken = self.spoken.get_mut(&to).unwrap();
        if spoken.epoch != epoch {
            (spoken.epoch, spoken.seq) = (epoch, 0);
        }
        let welcome = Welcome { cluster_silence_ns: silence, heartbeat_ns: 60 * SECOND };
        let mut text = self.say(to, Message::Welcome(welcome));
        self.workers.get_mut(&to).unwrap().handle_timeout(self.now);
        text.push_str(&self.actions(to));
        text
    }

    fn meet(&mut self, a: u32, b: u32) -> String {
        let up = |peer| Message::PeerUp(PeerUp { peer, address: Default::default() });
        let (peer_a, peer_b) = (self.peer_of(a), self.peer_of(b));
        self.say(a, up(peer_b)) + &self.say(b, up(peer_a))
    }

    fn peer_of(&self, worker: u32) -> Peer {
        self.workers[&worker].config().me
    }

    fn say(&mut self, to: u32, body: Message) -> String {
        let incarnation = self.peer_of(to).incarnation;
        let spoken = self.spoken.get_mut(&to).unwrap();
        spoken.seq += 1;
        let envelope = Envelope { from: Party::Cluster, to: incarnation, epoch: spoken.epoch, seq: spoken.seq, body };
        // What a worker reads has been bytes before.
        let envelope = Envelope::decode(&envelope.encode()).unwrap();
        spoken.last = Some(envelope.clone());
        self.event(to, WorkerEvent::Message(envelope))
    }

    fn deliver(&mut self, connection: (u32, u32), count: u64) -> String {
        let mut text = String::new();
        for _ in 0..count {
            let (queue, last) = self.mail.get_mut(&connection).expect("mail");
            let message = queue.pop_front().expect("mail");
            *last = Some(message.clone());
            let message = Envelope::decode(&message.encode()).unwrap();
            text.push_str(&self.event(connection.1, WorkerEvent::Message(message)));
        }
        text
    }

    fn event(&mut self, to: u32, event: WorkerEvent) -> String {
        self.workers.get_mut(&to).unwrap().handle(event, self.now);
        self.actions(to)
    }

    fn wait(&mut self, ms: u64) -> String {
        let until = self.now + ms * MILLISECOND;
        let mut text = String::new();
        loop {
            let due = |worker: &Worker| worker.poll_timeout().filter(|at| *at <= until);
            let Some((at, who)) = self
                .workers
                .iter()
                .filter(|(who, _)| !self.frozen.contains(who))
                .filter_map(|(&who, worker)| Some((due(worker)?, who)))
                .min()
            else {
                break;
            };
            self.now = self.now.max(at);
            self.workers.get_mut(&who).unwrap().handle_timeout(self.now);
            let actions = self.actions(who);
            for line in actions.lines() {
                writeln!(text, "{}ms {line}", self.now / MILLISECOND).unwrap();
            }
        }
        self.now = until;
        text
    }

    fn actions(&mut self, of: u32) -> String {
        let worker = self.workers.get_mut(&of).unwrap();
        let mut text = String::new();
        while let Some(action) = worker.poll_action() {
            match action {
                WorkerAction::Send { to, message } => {
                    writeln!(text, "w{of} -> {to}: {}", message.body).unwrap();
                    if let Message::Reserved(Reserved { attempt, destination }) = &message.body {
                        self.destinations.insert(*attempt, destination.clone());
                    }
                    if let Party::Worker(Peer { worker: WorkerId(to), .. }) = to {
                        self.mail.entry((of, to)).or_default().0.push_back(message);
                    }
                }
                WorkerAction::StartTransfer { peer, transfer, chunk, runs } => {
                    let run = |run: &pdsched_core::worker::Run| {
                        let (from, to) = (run.src_block.0, run.dst_block.0);
                        format!("{from}+{}>{to}+{}:{}", run.src_offset, run.dst_offset, run.num_tokens)
                    };
                    let runs: Vec<_> = runs.iter().map(run).collect();
                    writeln!(text, "w{of} copy {peer}/{transfer} chunk {chunk}: {}", runs.join(" ")).unwrap();
                }
                WorkerAction::CancelTransfer { peer, transfer } => {
                    writeln!(text, "w{of} cancel {peer}/{transfer}").unwrap();
                }
                WorkerAction::Connect { peer, .. } => writeln!(text, "w{of} connect {peer}").unwrap(),
                WorkerAction::Disconnect(peer) => writeln!(text, "w{of} disconnect {peer}").unwrap(),
                WorkerAction::Kill(peer) => writeln!(text, "w{of} kill {peer}").unwrap(),
            }
        }
        text
    }
}
