//! Workers join, are refused, come back in a new life or without their memory.

use super::*;

#[test]
fn workers_are_made_known_to_each_other() {
    let mut b = Bench::empty();
    assert_eq!(b.say(P, Message::Hello(hello(Role::Prefill))), ["w0#1 up, prefill", "w0#1 <- #1 welcome"]);
    assert_eq!(
        b.say(D, Message::Hello(hello(Role::Decode))),
        ["w1#1 up, decode", "w1#1 <- #1 welcome", "w1#1 <- #2 peer_up w0#1", "w0#1 <- #2 peer_up w1#1"]
    );
}

#[test]
fn a_worker_that_does_not_match_is_refused_with_the_reason() {
    let mut b = Bench::split();
    let other = Hello { fingerprint: "huge".into(), ..hello(Role::Decode) };
    assert_eq!(
        b.say(D2, Message::Hello(other)),
        ["w2#1 refused: its fingerprint is \"huge\", that of w0#1 is \"tiny\"; KV cannot flow between them"]
    );
    let empty = Hello { num_blocks: 0, ..hello(Role::Decode) };
    assert_eq!(b.say(D2, Message::Hello(empty)), ["w2#1 refused: num_blocks is 0, needs at least 1"]);
    assert!(b.load(D2, 0).is_empty());
    assert_eq!((b.cluster.stats().unknown_peer, b.cluster.stats().workers_refused), (1, 2));
    assert_eq!(b.cluster.workers().len(), 2);
}

#[test]
fn b094_a_new_life_is_the_end_of_the_old_one() {
    let mut b = Bench::bring_to(Phase::Decoding);
    let reborn = peer(1, 2);
    assert_eq!(
        b.say(reborn, Message::Hello(hello(Role::Decode))),
        [
            "w1#1 down, replaced",
            "w0#1 <- #4 peer_dead w1#1",
            "1.1 resuming",
            "w1#2 up, decode",
            "w1#2 <- #1 welcome",
            "w1#2 <- #2 peer_up w0#1",
            "w0#1 <- #5 peer_up w1#2",
            "1.2 reserving w0 -> w1",
            "w1#2 <- #3 reserve 1.2 prompt=4 known=1 max_tokens=8 source=w0#1 lease=2000ms",
        ]
    );
    assert!(b.report(D, tokens(attempt(1, 1), 1, &[66], None)).is_empty());
    assert!(b.say(D, Message::Hello(hello(Role::Decode))).is_empty());
    assert_eq!(b.cluster.stats().dead_incarnation, 2);
    assert!(b.dead(D).is_empty(), "known already");
}

#[test]
fn the_same_hello_again_costs_nothing() {
    let mut b = Bench::split();
    b.submit(1, 4, 8);
    let texts = b.say(D, Message::Hello(hello(Role::Decode)));
    assert!(texts.iter().any(|text| text.ends_with("welcome")), "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains("resuming")), "{texts:?}");
    assert_eq!(b.cluster.stats().failed_attempts, 0);
}

#[test]
fn a_second_hello_means_the_memory_is_gone() {
    let mut b = Bench::bring_to(Phase::HandedOff);
    b.load(D, 5);
    let texts = b.say(D, Message::Hello(Hello { generation: 1, ..hello(Role::Decode) }));
    assert_eq!(
        texts[..6],
        [
            "w1#1 <- #4 welcome",
            "w1#1 <- #5 peer_up w0#1",
            "w0#1 <- #4 peer_up w1#1",
            "w1#1 <- #6 abort 1.1", // it may have said Hello before it heard of the try
            "w0#1 <- #5 abort 1.1",
            "1.1 resuming",
        ]
    );
    assert_eq!(b.cluster.loads()[1].held, 0);
    assert_eq!(b.cluster.stats().worker_restarts, 1);
}

#[test]
fn the_dead_stay_dead() {
    let mut b = Bench::split();
    b.dead(D);
    assert!(b.say(D, Message::Hello(hello(Role::Decode))).is_empty());
    b.dead(peer(1, 5)); // died before it could say anything
    assert!(b.say(peer(1, 4), Message::Hello(hello(Role::Decode))).is_empty());
    assert_eq!(b.say(peer(1, 6), Message::Hello(hello(Role::Decode)))[0], "w1#6 up, decode");
    assert_eq!(b.cluster.stats().dead_incarnation, 2);
}

#[test]
fn a_successor_that_dies_unheard_is_proof_too() {
    let mut b = Bench::bring_to(Phase::Decoding);
    assert_eq!(b.dead(peer(1, 2)), ["w1#1 down, replaced", "w0#1 <- #4 peer_dead w1#1", "1.1 resuming"]);
}

#[test]
fn a_lost_worker_can_still_be_proven_dead_or_say_hello() {
    let mut b = Bench::bring_to(Phase::Running);
    b.wait_ms(8_000);
    assert_eq!(b.cluster.workers()[0].health, Health::Lost);
    let mut c = Bench { cluster: b.cluster.clone(), now: b.now, seqs: b.seqs.clone(), sent: b.sent.clone() };
    assert_eq!(b.dead(B), ["w3#1 down, dead"]);
    assert_eq!(b.cluster.stats().workers_lost, 1, "lost once");
    let texts = c.say(B, Message::Hello(Hello { generation: 1, ..hello(Role::Both) }));
    assert_eq!(texts[..3], ["w3#1 <- #3 welcome", "w3#1 up, both", "1.2 running on w3"]);
}

#[test]
fn b112_a_refusal_is_forgotten_by_time_alone() {
    let mut b = Bench::bring_to(Phase::Reserving);
    b.say(D, refused(attempt(1, 1)));
    b.abort(1);
    b.wait_ms(20);
    assert_eq!(b.submit(2, 4, 8)[1], "2.1 reserving w0 -> w1");
}

#[test]
fn a_quiet_cluster_answers_a_report() {
    let mut b = Bench::split();
    assert!(b.wait_ms_hearing(2_600, &[(P, 0), (D, 0)]).iter().all(|text| text.ends_with("heartbeat")));
    let texts = b.wait_ms_hearing(10_000, &[(P, 0), (D, 0)]);
    assert_eq!(texts.len(), 8, "each worker hears something four times in cluster_silence_ns: {texts:?}");
}
