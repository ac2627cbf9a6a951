//! The way of a request through its states, and the ends it can come to.

use super::*;

#[test]
fn a_request_on_two_workers() {
    let mut b = Bench::split();
    assert_eq!(
        b.submit(1, 4, 3),
        [
            "1.0 queued",
            "1.1 reserving w0 -> w1",
            "w1#1 <- #3 reserve 1.1 prompt=4 known=0 max_tokens=3 source=w0#1 lease=2000ms",
        ]
    );
    assert_eq!(
        b.say(D, reserved(D, attempt(1, 1))),
        [
            "1.1 prefilling w0 -> w1",
            "w0#1 <- #3 prefill 1.1 prompt=4 known=0 max_tokens=3 \
             to=w1#1 transfer=1 missing=0..4 blocks=0x4 lease=2000ms",
        ]
    );
    b.now = 5;
    assert_eq!(b.report(P, tokens(attempt(1, 1), 0, &[10], None)), ["emit 1@0 [10]", "1.1 handed_off w0 -> w1"]);
    assert_eq!(b.report(D, activated(attempt(1, 1))), ["1.1 decoding on w1"]);
    assert_eq!(b.report(D, tokens(attempt(1, 1), 0, &[10, 11], None)), ["emit 1@1 [11]"]);
    b.now = 9;
    let report = tokens(attempt(1, 1), 2, &[12], Some(FinishReason::Length));
    let envelope = b.envelope(D, Message::StepReport(report));
    b.cluster.handle(ClusterEvent::Message(envelope), 9).unwrap();
    assert_eq!(b.cluster.poll_action().unwrap().to_string(), "emit 1@2 [12]");
    let Some(ClusterAction::Finish { reason, timing, .. }) = b.cluster.poll_action() else { panic!() };
    let phases =
        [Phase::Queued, Phase::Reserving, Phase::Prefilling, Phase::HandedOff, Phase::Decoding, Phase::Finished];
    assert_eq!(timing.entered, phases.into_iter().zip([0, 0, 0, 5, 5, 9]).collect::<Vec<_>>());
    assert_eq!((reason, timing.ttft_ns()), (FinishReason::Length, Some(5)));
    b.assert_idle();
    let stats = b.cluster.stats();
    assert_eq!((stats.emitted_tokens, stats.duplicate_tokens, stats.finished), (3, 1, 1));
}

#[test]
fn b069_no_abort_is_sent_for_a_normal_end() {
    let mut b = Bench::bring_to(Phase::Decoding);
    assert_eq!(
        b.report(D, tokens(attempt(1, 1), 1, &[2], Some(FinishReason::Stop))),
        ["emit 1@1 [2]", "finish 1 stop"]
    );
    b.assert_idle();
}

#[test]
fn the_decode_side_may_be_heard_first() {
    let mut b = Bench::bring_to(Phase::Prefilling);
    let mut report = tokens(attempt(1, 1), 0, &[10], None);
    report.activated = vec![attempt(1, 1)];
    assert_eq!(b.report(D, report), ["1.1 decoding on w1", "emit 1@0 [10]"]);
    assert!(
        b.report(P, tokens(attempt(1, 1), 0, &[10], None)).is_empty(),
        "late, known, and no reason to end anything"
    );
    assert_eq!(b.cluster.stats().duplicate_tokens, 1);
}

#[test]
fn the_first_token_can_be_the_last() {
    let mut b = Bench::bring_to(Phase::Prefilling);
    let texts = b.report(P, tokens(attempt(1, 1), 0, &[2], Some(FinishReason::Stop)));
    assert_eq!(texts, ["emit 1@0 [2]", "1.1 handed_off w0 -> w1", "w1#1 <- #4 abort 1.1", "finish 1 stop"]);
    b.assert_idle();
}

#[test]
fn a_request_on_one_worker() {
    let mut b = Bench::with(&[(B, Role::Both)]);
    assert_eq!(
        b.submit(1, 4, 2),
        ["1.0 queued", "1.1 running on w3", "w3#1 <- #2 decode 1.1 prompt=4 known=0 max_tokens=2"]
    );
    assert_eq!(b.cluster.loads()[0].queued_prefill, 4);
    assert_eq!(b.report(B, tokens(attempt(1, 1), 0, &[10], None)), ["emit 1@0 [10]"]);
    assert_eq!(b.cluster.loads()[0].queued_prefill, 0);
    let end = b.report(B, tokens(attempt(1, 1), 1, &[11], Some(FinishReason::Length)));
    assert_eq!(end, ["emit 1@1 [11]", "finish 1 length"]);
    b.assert_idle();
}

#[test]
fn separate_workers_go_first_when_there_are_both_kinds() {
    let mut b = Bench::with(&[(B, Role::Both), (P, Role::Prefill)]);
    assert!(b.submit(1, 4, 2).contains(&"1.1 running on w3".into()), "no decode worker yet");
    b.say(D, Message::Hello(hello(Role::Decode)));
    assert!(b.submit(2, 4, 2).contains(&"2.1 reserving w0 -> w1".into()));
    b.load(D, 32);
    assert!(b.submit(3, 4, 2).contains(&"3.1 running on w3".into()), "the decode worker is full");
}

#[test]
fn extras_travel_with_their_tokens() {
    let mut b = Bench::bring_to(Phase::Prefilling);
    b.report(P, tokens(attempt(1, 1), 0, &[10], None));
    let mut report = tokens(attempt(1, 1), 0, &[10, 11], None);
    report.extras = vec![ByteBuf::from([0]), ByteBuf::from([1])];
    let envelope = b.envelope(D, Message::StepReport(report));
    b.cluster.handle(ClusterEvent::Message(envelope), 0).unwrap();
    let Some(ClusterAction::Emit { index: 1, extras, .. }) = b.cluster.poll_action() else { panic!() };
    assert_eq!(extras, [ByteBuf::from([1])]);
}

#[test]
fn a_refused_reservation_keeps_its_turn() {
    let mut b = Bench::split();
    b.submit(1, 4, 8);
    assert_eq!(b.say(D, refused(attempt(1, 1))), ["1.1 queued"]);
    assert_eq!(b.submit(2, 4, 8), ["2.0 queued"]);
    assert!(b.wait_ms(19).is_empty());
    let texts = b.wait_ms(1);
    assert_eq!((texts[0].as_str(), texts[2].as_str()), ("1.2 reserving w0 -> w1", "2.1 reserving w0 -> w1"));
    b.say(D, refused(attempt(1, 2)));
    assert_eq!(b.load(D, 0)[0], "1.3 reserving w0 -> w1", "a report is newer than the refusal");
    assert_eq!(b.cluster.requests()[0].failures, 0);
}

#[test]
fn a_refused_reservation_goes_elsewhere_at_once() {
    let mut b = Bench::with(&[(P, Role::Prefill), (D, Role::Decode), (D2, Role::Decode)]);
    b.submit(1, 4, 8);
    let texts = b.say(D, refused(attempt(1, 1)));
    assert_eq!(texts[..2], ["1.1 queued", "1.2 reserving w0 -> w2"]);
}

#[test]
fn refusals_do_not_prolong_the_wait() {
    let mut b = Bench::split();
    b.submit(1, 4, 8);
    for number in 1..=300 {
        assert_eq!(b.say(D, refused(attempt(1, number))), [format!("1.{number} queued")]);
        b.wait_ms_hearing(200, &[(P, 0), (D, 0)]);
    }
    assert_eq!(
        b.say(D, refused(attempt(1, 301))),
        ["1.301 queued", "finish 1 timeout: no place within 60000 ms"],
        "refused to the end"
    );
    assert_eq!(b.now, 60_000 * MILLISECOND);
    b.assert_idle();
}

#[test]
fn rejected_is_final() {
    for (phase, by, texts) in [
        (Phase::Reserving, D, vec!["finish 1 refused: no"]),
        (Phase::Prefilling, P, vec!["w1#1 <- #4 abort 1.1", "finish 1 refused: no"]),
        (Phase::Running, B, vec!["finish 1 refused: no"]),
    ] {
        let mut b = Bench::bring_to(phase);
        assert_eq!(b.say(by, Message::Rejected(Rejected { attempt: attempt(1, 1), reason: "no".into() })), texts);
        b.assert_idle();
    }
}

#[test]
fn abort_in_every_state() {
    let tell_d = "w1#1 <- #4 abort 1.1";
    let (tell_p, tell_b) = ("w0#1 <- #4 abort 1.1", "w3#1 <- #3 abort 1.1");
    for (phase, told) in [
        (Phase::Queued, vec![]),
        (Phase::Reserving, vec![tell_d]),
        (Phase::Prefilling, vec![tell_d, tell_p]),
        (Phase::HandedOff, vec![tell_d, tell_p]),
        (Phase::Decoding, vec![tell_d]),
        (Phase::Running, vec![tell_b]),
    ] {
        let mut b = Bench::bring_to(phase);
        assert_eq!(b.abort(1), [told, vec!["finish 1 abort"]].concat(), "{phase}");
        b.assert_idle();
        assert!(b.abort(1).is_empty() && b.abort(99).is_empty());
        assert_eq!(b.cluster.stats().unknown_aborts, 2);
    }
}

#[test]
fn b056_nothing_follows_an_abort() {
    let mut b = Bench::bring_to(Phase::Decoding);
    b.abort(1);
    assert!(b.report(D, tokens(attempt(1, 1), 1, &[11], None)).is_empty(), "it has been told already");
    assert!(b.report(D, tokens(attempt(1, 1), 2, &[12], Some(FinishReason::Length))).is_empty());
    assert_eq!(b.cluster.stats().stale_attempts, 3);
}

#[test]
fn b054_progress_and_cancelled_prompts_leave_the_prefill_queue() {
    let mut b = Bench::split();
    for id in 1..=3 {
        b.submit(id, 30, 8);
        b.say(D, reserved(D, attempt(id, 1)));
    }
    assert_eq!(b.cluster.loads()[0].queued_prefill, 90);
    b.report(P, StepReport { progress: vec![(attempt(1, 1), 20)], ..StepReport::default() });
    assert_eq!(b.cluster.loads()[0].queued_prefill, 70);
    (1..=3).for_each(|id| drop(b.abort(id)));
    b.assert_idle();
}
