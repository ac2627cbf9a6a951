//! Tries that fail: by a worker's word, by time, by the loss of a worker. The stream goes on.

use super::*;

/// The part of the actions that says what became of requests.
fn fates(texts: Vec<String>) -> Vec<String> {
    texts.into_iter().filter(|text| !text.contains("<-") && !text.contains("down")).collect()
}

#[test]
fn a_failed_attempt_is_placed_again_with_its_outputs() {
    let mut b = Bench::bring_to(Phase::HandedOff);
    assert_eq!(
        b.say(D, failed(attempt(1, 1))),
        [
            "w0#1 <- #4 abort 1.1",
            "1.1 resuming",
            "1.2 reserving w0 -> w1",
            "w1#1 <- #4 reserve 1.2 prompt=4 known=1 max_tokens=8 source=w0#1 lease=2000ms",
        ]
    );
    b.say(D, reserved(D, attempt(1, 2)));
    assert_eq!(
        b.report(P, tokens(attempt(1, 2), 1, &[11], None)),
        ["emit 1@1 [11]", "1.2 handed_off w0 -> w1"],
        "the index goes on"
    );
    assert_eq!(b.cluster.requests()[0].failures, 1);
}

#[test]
fn the_other_side_of_a_failed_attempt_is_told() {
    let mut b = Bench::bring_to(Phase::Prefilling);
    assert_eq!(b.say(P, failed(attempt(1, 1)))[..2], ["w1#1 <- #4 abort 1.1", "1.1 resuming"]);
    let mut b = Bench::bring_to(Phase::Decoding);
    assert!(b.say(P, failed(attempt(1, 1))).is_empty(), "a source that missed its release is not part of it any more");
    assert_eq!(b.cluster.stats().unexpected, 1);
    let mut b = Bench::bring_to(Phase::Running);
    assert_eq!(b.say(B, failed(attempt(1, 1)))[..2], ["1.1 resuming", "1.2 running on w3"]);
}

#[test]
fn b089_after_too_many_failures_it_ends() {
    let mut b = Bench::bring_to(Phase::Running);
    for number in 1..5 {
        b.say(B, failed(attempt(1, number)));
    }
    assert_eq!(
        b.say(B, failed(attempt(1, 5))),
        ["1.5 resuming", "finish 1 error: failed 5 times, the last time because lease_expired"]
    );
    b.assert_idle();
}

#[test]
fn an_unanswered_reservation_is_placed_again() {
    let mut b = Bench::bring_to(Phase::Reserving);
    let texts = b.wait_ms_hearing(4_000, &[(P, 0), (D, 0)]);
    let texts: Vec<_> = texts.into_iter().filter(|text| !text.contains("heartbeat")).collect();
    assert_eq!(texts[..3], ["w1#1 <- #5 abort 1.1", "1.1 resuming", "1.2 reserving w0 -> w1"]);
    assert_eq!(b.cluster.stats().unanswered, 1);
    // The answer to the old one comes after all.
    assert!(b.say(D, reserved(D, attempt(1, 1))).is_empty(), "told already");
    assert_eq!(b.phase(), Phase::Reserving);
}

#[test]
fn a_proven_death_in_every_state() {
    for phase in PLACED {
        let (dead, expected) = match phase {
            Phase::Running => (B, vec!["w3#1 down, dead", "1.1 resuming"]),
            Phase::Reserving | Phase::Decoding => {
                (D, vec!["w1#1 down, dead", "w0#1 <- #", "1.1 resuming"]) // the source holds nothing, or no more
            }
            _ => (D, vec!["w1#1 down, dead", "w0#1 <- #", "w0#1 <- #", "1.1 resuming"]),
        };
        let mut b = Bench::bring_to(phase);
        let texts = b.dead(dead);
        assert_eq!(texts.len(), expected.len(), "{phase}: {texts:?}");
        assert!(texts.iter().zip(&expected).all(|(text, start)| text.starts_with(start)), "{phase}: {texts:?}");
        assert!(b.dead(dead).is_empty(), "it dies once");
        assert_eq!((b.phase(), b.cluster.loads().iter().map(|load| load.placements).sum()), (Phase::Resuming, 0));
        assert_eq!(b.wait_ms(60_000).last().unwrap(), "finish 1 timeout: no place within 60000 ms");
        b.assert_idle();
    }
}

#[test]
fn the_death_of_the_source() {
    for phase in [Phase::Reserving, Phase::Prefilling, Phase::HandedOff] {
        let mut b = Bench::bring_to(phase);
        let texts = b.dead(P);
        assert_eq!(
            texts,
            ["w0#1 down, dead", "w1#1 <- #4 peer_dead w0#1", "w1#1 <- #5 abort 1.1", "1.1 resuming"],
            "{phase}"
        );
    }
    let mut b = Bench::bring_to(Phase::Decoding);
    assert_eq!(b.dead(P), ["w0#1 down, dead", "w1#1 <- #4 peer_dead w0#1"], "it has done its part");
    assert_eq!(b.phase(), Phase::Decoding);
}

#[test]
fn a_decode_worker_dies_and_the_stream_goes_on() {
    let mut b = Bench::bring_to(Phase::Decoding);
    b.say(D2, Message::Hello(hello(Role::Decode)));
    b.report(D, tokens(attempt(1, 1), 1, &[11, 12], None));
    assert_eq!(fates(b.dead(D)), ["1.1 resuming", "1.2 reserving w0 -> w2"]);
    assert!(b.report(D, tokens(attempt(1, 1), 3, &[66], None)).is_empty(), "the dead do not speak");
    assert_eq!(b.cluster.stats().dead_incarnation, 1);
    b.say(D2, reserved(D2, attempt(1, 2)));
    assert_eq!(fates(b.report(P, tokens(attempt(1, 2), 3, &[13], None)))[0], "emit 1@3 [13]");
    b.report(D2, activated(attempt(1, 2)));
    let end = b.report(D2, tokens(attempt(1, 2), 4, &[14], Some(FinishReason::Stop)));
    assert_eq!(end, ["emit 1@4 [14]", "finish 1 stop"]);
    b.assert_idle();
}

#[test]
fn orphans_return_in_the_order_of_their_arrival() {
    let mut b = Bench::with(&[(B, Role::Both)]);
    for id in [5, 3, 9] {
        b.submit(id, 20, 8);
    }
    b.submit(10, 99, 8); // waits
    assert_eq!(fates(b.dead(B)), ["5.1 resuming", "3.2 resuming", "9.1 resuming"]);
    let texts = fates(b.say(peer(4, 1), Message::Hello(hello(Role::Both))));
    assert_eq!(texts[1..], ["5.2 running on w4", "3.3 running on w4", "9.2 running on w4"]);
}

#[test]
fn a_silent_worker_is_suspected_then_lost_then_told() {
    let mut b = Bench::bring_to(Phase::Decoding);
    assert!(b.wait_ms(2_999).is_empty());
    assert!(b.cluster.loads().iter().all(|load| load.up));
    b.load(P, 0);
    assert!(b.wait_ms(1).is_empty());
    assert_eq!(b.cluster.workers()[1].health, Health::Suspect);
    assert_eq!(b.submit(2, 4, 8), ["2.0 queued"], "no new requests");
    let texts = b.wait_ms_hearing(5_000, &[(P, 0)]);
    let texts: Vec<_> = texts.into_iter().filter(|text| !text.contains("heartbeat")).collect();
    assert_eq!(texts, ["w1#1 down, silent", "1.1 resuming"], "no proof: no peer_dead");
    assert_eq!(b.cluster.workers()[1].health, Health::Lost);
    // It was only asleep, and says what it was about to say.
    let texts = b.report(D, tokens(attempt(1, 1), 1, &[66], None));
    assert_eq!(texts[..3], ["w1#1 up, decode", "w1#1 <- #4 abort 1.1", "1.2 reserving w0 -> w1"]);
    assert_eq!(texts[4], "2.1 reserving w0 -> w1");
    assert_eq!(b.cluster.stats().stale_attempts, 1);
}

#[test]
fn a_suspect_that_speaks_is_up_again() {
    let mut b = Bench::bring_to(Phase::Decoding);
    b.wait_ms(5_000);
    assert_eq!(b.cluster.workers()[1].health, Health::Suspect);
    assert_eq!(b.report(D, tokens(attempt(1, 1), 1, &[11], None)), ["emit 1@1 [11]"]);
    assert_eq!(b.cluster.workers()[1].health, Health::Up);
    b.wait_ms(2_999);
    assert_eq!(b.cluster.workers()[1].health, Health::Up);
    b.wait_ms(1);
    assert_eq!(b.cluster.workers()[1].health, Health::Suspect, "counted from its last word");
}

#[test]
fn a_time_jump_past_both_limits() {
    let mut b = Bench::bring_to(Phase::Running);
    b.now = 30_000 * MILLISECOND;
    b.cluster.handle_timeout(b.now);
    assert_eq!(b.actions(), ["w3#1 down, silent", "1.1 resuming"]);
}

#[test]
fn a_hole_in_the_tokens_is_never_filled_so_the_try_fails() {
    let mut b = Bench::bring_to(Phase::Decoding);
    let texts = b.report(D, tokens(attempt(1, 1), 2, &[12], Some(FinishReason::Length)));
    assert_eq!(texts[..3], ["w1#1 <- #4 abort 1.1", "1.1 resuming", "1.2 reserving w0 -> w1"]);
    assert_eq!((b.cluster.stats().token_gaps, b.cluster.stats().emitted_tokens), (1, 1));
}

#[test]
fn a_lost_message_fails_what_it_may_have_been_about() {
    let mut b = Bench::bring_to(Phase::Decoding);
    drop(b.envelope(D, Message::StepReport(tokens(attempt(1, 1), 1, &[11], Some(FinishReason::Stop)))));
    let texts = b.load(D, 0);
    assert_eq!(texts[..2], ["w1#1 <- #4 abort 1.1", "1.1 resuming"]);
    assert_eq!(b.cluster.stats().lost_messages, 1);
}

#[test]
fn only_the_end_was_lost() {
    let mut b = Bench::bring_to(Phase::Decoding);
    b.report(D, tokens(attempt(1, 1), 1, &[0, 0, 0, 0, 0, 0, 0], None));
    assert_eq!(fates(b.dead(D)), ["1.1 resuming", "finish 1 length"]);
    b.assert_idle();
}
