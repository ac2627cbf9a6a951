//! Which requests are taken, and which are next.

use super::*;

#[test]
fn bad_requests_are_refused_and_change_nothing() {
    let mut b = Bench::split();
    b.submit(1, 4, 8);
    let ok = || Request::new(2, &[5; 4], 8);
    assert_eq!(b.try_submit(Request::new(1, &[5], 1)), "request 1 is already there and not finished");
    assert_eq!(b.try_submit(Request::new(2, &[], 1)), "request 2 has an empty prompt");
    assert_eq!(
        b.try_submit(Request { prompt_len: 5, ..ok() }),
        "request 2 has prompt_len 5, needs 1 to 4, the number of its tokens"
    );
    assert_eq!(
        b.try_submit(Request { prompt_len: 0, ..ok() }),
        "request 2 has prompt_len 0, needs 1 to 4, the number of its tokens"
    );
    assert_eq!(
        b.try_submit(Request { max_tokens: 0, ..ok() }),
        "request 2 has max_tokens 0, needs more than the 0 outputs it brings"
    );
    assert_eq!(
        b.try_submit(Request { max_tokens: 2, prompt_len: 2, ..ok() }),
        "request 2 has max_tokens 2, needs more than the 2 outputs it brings"
    );
    assert_eq!(b.cluster.stats().refused_at_submit, 6);
}

#[test]
fn b036_what_can_never_fit_is_refused_at_once() {
    let mut b = Bench::split();
    assert_eq!(
        b.try_submit(Request::new(1, &[5; 100], 1)),
        "request 1 has 100 tokens and needs room for one more; the largest limit of any worker is 100"
    );
    b.submit(2, 99, 1);
    // Handed in before any worker was known: found out when the first one joins.
    let mut b = Bench::empty();
    b.submit(1, 100, 1);
    b.say(P, Message::Hello(hello(Role::Prefill)));
    assert_eq!(
        b.say(D, Message::Hello(hello(Role::Decode))).last().unwrap(),
        "finish 1 refused: 100 tokens and one more fit no worker; the largest limit is 100"
    );
}

#[test]
fn the_queue_is_bounded() {
    let mut b = Bench::empty();
    b.cluster = Cluster::new(ClusterConfig { max_queue: 2, ..ClusterConfig::new(Epoch(7)) }).unwrap();
    b.submit(1, 4, 8);
    b.submit(2, 4, 8);
    assert_eq!(
        b.try_submit(Request::new(3, &[5], 8)),
        "request 3 not queued: 2 requests are waiting already, max_queue is 2"
    );
}

#[test]
fn b061_a_reused_id_is_not_touched_by_its_past() {
    let mut b = Bench::bring_to(Phase::Decoding);
    b.abort(1);
    assert_eq!(b.submit(1, 4, 8)[1], "1.2 reserving w0 -> w1", "numbers go on");
    b.say(D, reserved(D, attempt(1, 2)));
    assert!(b.report(D, tokens(attempt(1, 1), 0, &[66], Some(FinishReason::Stop))).is_empty());
    assert!(b.say(P, failed(attempt(1, 1))).is_empty());
    assert_eq!(b.phase(), Phase::Prefilling);
    assert_eq!(b.submit(2, 4, 8)[1], "2.1 reserving w0 -> w1", "an id above all others is new");
}

#[test]
fn a_request_may_bring_outputs() {
    let mut b = Bench::with(&[(B, Role::Both)]);
    let mut request = Request::new(1, &[5, 5, 5, 6, 7], 4);
    request.prompt_len = 3;
    b.event(ClusterEvent::Submit(request));
    assert_eq!(b.report(B, tokens(attempt(1, 1), 2, &[8], None)), ["emit 1@2 [8]"]);
}

#[test]
fn first_come_first_served() {
    let mut b = Bench::with(&[(P, Role::Prefill), (D, Role::Decode)]);
    b.submit(1, 99, 8); // the pool has 128
    assert_eq!(b.submit(2, 60, 8), ["2.0 queued"]);
    assert_eq!(b.submit(3, 4, 8), ["3.0 queued"], "would fit, but it is not its turn");
    let texts = b.abort(1);
    assert_eq!(texts[..3], ["w1#1 <- #4 abort 1.1", "finish 1 abort", "2.1 reserving w0 -> w1"]);
    assert_eq!(texts[4], "3.1 reserving w0 -> w1");
}

#[test]
fn b125_what_has_no_place_waits_here() {
    let mut b = Bench::split();
    (1..=10).for_each(|id| drop(b.submit(id, 30, 8)));
    assert_eq!(b.cluster.num_waiting(), 6, "of 128 tokens four requests of 30 and one token each are booked");
    let d = b.cluster.loads()[1];
    assert_eq!((d.booked, d.expected_growth, d.placements), (120, 32, 4));
}
