//! Workers come, go silent, die and come back.
//!
//! | health | nothing heard | it speaks | Hello of the same incarnation, a new generation | `WorkerDead`, Hello of a newer one |
//! |---|---|---|---|---|
//! | `Up` | `worker_silence_ns`: `Suspect` | `Up` | its requests are placed again, `Up` | gone, its requests are placed again |
//! | `Suspect` | `lost_after_ns` more: `Lost`, its requests are placed again | `Up` | the same | the same |
//! | `Lost` | stays | `Up`, after it is told what it lost | the same | gone |
//!
//! Only the last column is proof: the other workers hear [`PeerDead`](Message::PeerDead) then and only then, because
//! what a silent worker was writing, it may still write.

use super::registry::{Health, Worker};
use super::{Cluster, ClusterAction, DownReason, Timer};
use crate::ids::{Peer, WorkerId};
use crate::message::{Hello, Message, PeerUp, Welcome};
use crate::time::Time;

impl Cluster {
    /// A worker introduces itself. Its number is not compared with a missing one: a Hello starts afresh anyway.
    pub(super) fn hello(&mut self, peer: Peer, seq: u64, hello: Hello, now: Time) {
        let known = self.registry.get(peer.worker).map(|worker| (worker.peer, worker.last_seq));
        let over = known.is_some_and(|(current, _)| peer.incarnation < current.incarnation);
        if over || self.registry.is_over(peer) {
            return self.stats.dead_incarnation += 1;
        }
        if known.is_some_and(|(current, last)| current == peer && seq <= last) {
            return self.stats.duplicate_messages += 1;
        }
        if let Some((current, _)) = known.filter(|(current, _)| *current != peer) {
            self.bury(current, DownReason::Replaced, now);
        }
        if let Some(reason) = self.objection(peer.worker, &hello) {
            self.stats.workers_refused += 1;
            self.actions.push_back(ClusterAction::WorkerRefused { peer, reason });
        } else if self.repeats(peer, &hello) {
            // It has not heard its Welcome yet, or it came again: nothing is lost.
            let worker = self.registry.current_mut(peer).expect("a repetition has a first time");
            (worker.last_seq, worker.last_heard) = (seq, now);
            self.introduce(peer, now);
        } else if self.registry.current(peer).is_some() {
            self.restart(peer, seq, hello, now);
        } else {
            self.join(peer, seq, hello, now);
        }
    }

    fn repeats(&self, peer: Peer, hello: &Hello) -> bool {
        let known = self.registry.current(peer);
        known.is_some_and(|worker| worker.health == Health::Up && worker.hello.generation == hello.generation)
    }

    /// Why a worker cannot be accepted.
    fn objection(&self, worker: WorkerId, hello: &Hello) -> Option<String> {
        let values = [
            ("block_size", hello.block_size),
            ("num_blocks", hello.num_blocks),
            ("max_model_len", hello.max_model_len),
            ("max_num_seqs", hello.max_num_seqs),
        ];
        if let Some((field, value)) = values.into_iter().find(|(_, value)| *value == 0) {
            return Some(format!("{field} is {value}, needs at least 1"));
        }
        let accepted = self.registry.iter().find(|other| other.peer.worker != worker)?;
        (accepted.hello.fingerprint != hello.fingerprint).then(|| {
            let (theirs, other) = (&accepted.hello.fingerprint, accepted.peer);
            format!(
                "its fingerprint is {:?}, that of {other} is {theirs:?}; KV cannot flow between them",
                hello.fingerprint
            )
        })
    }

    fn join(&mut self, peer: Peer, seq: u64, hello: Hello, now: Time) {
        let silence_at = now.saturating_add(self.config.worker_silence_ns);
        let worker = Worker::new(peer, hello, seq, now, silence_at);
        let (role, capacity) = (worker.hello.role, worker.capacity());
        self.registry.insert(worker);
        self.timers.arm(silence_at, Timer::Silence(peer.worker));
        self.balancer.add_worker(peer.worker, role, capacity);
        self.may_place = true;
        self.actions.push_back(ClusterAction::WorkerUp { peer, role });
        self.introduce(peer, now);
    }

    /// The same process, without memory of what it was doing. Unlike a new incarnation it may still be writing: the
    /// tries it had are ended by message, not declared dead.
    fn restart(&mut self, peer: Peer, seq: u64, hello: Hello, now: Time) {
        self.stats.worker_restarts += 1;
        let old = self.registry.remove(peer).expect("the caller has looked");
        if let Some(at) = old.refused_until {
            self.timers.disarm(at, Timer::Retry(peer.worker));
        }
        if old.health != Health::Lost {
            self.timers.disarm(old.silence_at, Timer::Silence(peer.worker));
        }
        let silence_at = now.saturating_add(self.config.worker_silence_ns);
        let mut worker = Worker::new(peer, hello, seq, now, silence_at);
        worker.sent_seq = old.sent_seq; // one count for an incarnation
        let (role, capacity) = (worker.hello.role, worker.capacity());
        self.registry.insert(worker);
        self.timers.arm(silence_at, Timer::Silence(peer.worker));
        self.introduce(peer, now);
        self.fail_all_on(peer, "its worker lost its state", None, now);
        self.balancer.remove_worker(peer.worker);
        self.balancer.add_worker(peer.worker, role, capacity);
        self.may_place = true;
        self.actions.push_back(ClusterAction::WorkerUp { peer, role });
    }

    /// Welcomes a worker and makes it and the others known to each other.
    fn introduce(&mut self, peer: Peer, now: Time) {
        let (cluster_silence_ns, heartbeat_ns) = (self.config.cluster_silence_ns, self.config.heartbeat_ns);
        self.send(peer, Message::Welcome(Welcome { cluster_silence_ns, heartbeat_ns }), now);
        let address = |cluster: &Self, peer| cluster.registry.current(peer).map(|w| w.hello.address.clone());
        for other in self.registry.others(peer.worker) {
            if let (Some(mine), Some(theirs)) = (address(self, peer), address(self, other)) {
                self.send(peer, Message::PeerUp(PeerUp { peer: other, address: theirs }), now);
                self.send(other, Message::PeerUp(PeerUp { peer, address: mine }), now);
            }
        }
    }

    /// The host has proof that a worker is dead.
    pub(super) fn worker_dead(&mut self, peer: Peer, now: Time) {
        if let Some(current) = self.registry.get(peer.worker).map(|worker| worker.peer) {
            if current.incarnation == peer.incarnation {
                self.bury(current, DownReason::Dead, now);
            } else if current.incarnation < peer.incarnation {
                self.bury(current, DownReason::Replaced, now); // its successor died before its Hello
            }
        }
        self.registry.mark_over(peer);
    }

    /// A present worker is proven to have ended.
    fn bury(&mut self, peer: Peer, reason: DownReason, now: Time) {
        let Some(worker) = self.registry.remove(peer) else {
            return;
        };
        self.registry.mark_over(peer);
        self.stats.workers_lost += u64::from(worker.health != Health::Lost);
        if worker.health != Health::Lost {
            self.timers.disarm(worker.silence_at, Timer::Silence(peer.worker));
        }
        if let Some(at) = worker.refused_until {
            self.timers.disarm(at, Timer::Retry(peer.worker));
        }
        self.actions.push_back(ClusterAction::WorkerDown { peer, reason });
        for other in self.registry.others(peer.worker) {
            self.send(other, Message::PeerDead(peer), now);
        }
        self.fail_all_on(peer, "its worker died", Some(peer), now);
        self.balancer.remove_worker(peer.worker);
        self.may_place = true;
    }

    /// A silence timer fired. Messages do not move it, so it may turn out that there was no silence.
    pub(super) fn look_at_silence(&mut self, id: WorkerId, now: Time) {
        let Some(worker) = self.registry.get_mut(id) else {
            return;
        };
        let suspect_at = worker.last_heard.saturating_add(self.config.worker_silence_ns);
        let lost_at = suspect_at.saturating_add(self.config.lost_after_ns);
        let next = if now < suspect_at {
            suspect_at
        } else if now < lost_at {
            worker.health = Health::Suspect;
            self.balancer.set_health(id, false);
            lost_at
        } else {
            let peer = worker.peer;
            worker.health = Health::Lost;
            self.balancer.set_health(id, false);
            return self.lose_silently(peer, now);
        };
        worker.silence_at = next;
        self.timers.arm(next, Timer::Silence(id));
    }

    /// A loss without proof. The worker stays registered, and hears what was ended when it speaks again.
    fn lose_silently(&mut self, peer: Peer, now: Time) {
        self.stats.workers_lost += 1;
        self.actions.push_back(ClusterAction::WorkerDown { peer, reason: DownReason::Silent });
        self.fail_all_on(peer, "its worker was silent", None, now);
        self.may_place = true;
    }

    /// A worker that was suspect or lost speaks.
    pub(super) fn revive(&mut self, peer: Peer, now: Time) {
        let worker = self.registry.current_mut(peer).expect("the caller has looked");
        let (was, role) = (worker.health, worker.hello.role);
        worker.health = Health::Up;
        let owed = std::mem::take(&mut worker.owed_aborts);
        self.balancer.set_health(peer.worker, true);
        self.may_place = true;
        if was == Health::Suspect {
            self.timers.disarm(worker.silence_at, Timer::Silence(peer.worker)); // that was when it would be lost
        }
        worker.silence_at = now.saturating_add(self.config.worker_silence_ns);
        self.timers.arm(worker.silence_at, Timer::Silence(peer.worker));
        if was == Health::Lost {
            self.actions.push_back(ClusterAction::WorkerUp { peer, role });
        }
        for attempt in owed {
            self.send(peer, Message::Abort(attempt), now);
        }
    }

    /// A decode worker that refused is not asked again until it reports or some time has passed.
    pub(super) fn wait_after_refusal(&mut self, peer: Peer, now: Time) {
        let at = now.saturating_add(self.config.retry_after_refusal_ns);
        let worker = self.registry.current_mut(peer).expect("an accepted message has a sender");
        if let Some(earlier) = worker.refused_until.replace(at) {
            self.timers.disarm(earlier, Timer::Retry(peer.worker));
        }
        self.timers.arm(at, Timer::Retry(peer.worker));
    }

    pub(super) fn retry_after_refusal(&mut self, worker: WorkerId) {
        if let Some(worker) = self.registry.get_mut(worker) {
            worker.refused_until = None;
            self.may_place = true;
        }
    }
}
