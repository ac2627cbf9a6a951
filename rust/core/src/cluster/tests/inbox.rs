//! What is late, repeated, foreign, unknown or malformed is counted and changes nothing (I13).

use super::*;

/// Sends an envelope as it is; nothing may come of it.
fn ignored(b: &mut Bench, envelope: Envelope) {
    let before = b.cluster.requests();
    assert_eq!(b.event(ClusterEvent::Message(envelope)), Vec::<String>::new());
    assert_eq!(b.cluster.requests(), before);
}

#[test]
fn envelopes() {
    let mut b = Bench::bring_to(Phase::Decoding);
    let news = || Message::StepReport(tokens(attempt(1, 1), 1, &[11], None));
    let good = b.envelope(D, news());
    ignored(&mut b, Envelope { from: Party::Cluster, ..good.clone() });
    ignored(&mut b, Envelope { from: Party::Worker(peer(9, 1)), ..good.clone() });
    ignored(&mut b, Envelope { from: Party::Worker(peer(1, 2)), ..good.clone() });
    ignored(&mut b, Envelope { from: Party::Worker(peer(1, 0)), ..good.clone() });
    ignored(&mut b, Envelope { seq: good.seq - 1, ..good.clone() });
    ignored(&mut b, Envelope { epoch: Epoch(6), ..good.clone() });
    ignored(&mut b, good); // that number is taken now
    let stats = b.cluster.stats();
    assert_eq!((stats.unexpected, stats.unknown_peer, stats.dead_incarnation), (1, 2, 1));
    assert_eq!((stats.duplicate_messages, stats.foreign_epoch, stats.lost_messages), (2, 1, 0));
    assert_eq!(b.say(D, news()), ["emit 1@1 [11]"]);
}

#[test]
fn malformed_reports() {
    let mut b = Bench::bring_to(Phase::Decoding);
    let good = || tokens(attempt(1, 1), 1, &[11], None);
    let acked = Load { acked_seq: 99, ..Load::default() };
    let bad = [
        Message::StepReport(StepReport { counts: vec![2], ..good() }),
        Message::StepReport(StepReport { counts: vec![u32::MAX], ..good() }),
        Message::StepReport(StepReport { counts: vec![], ..good() }),
        Message::StepReport(StepReport { first_index: vec![], ..good() }),
        Message::StepReport(StepReport { extras: vec![ByteBuf::new(); 2], ..good() }),
        Message::Load(acked),
    ];
    let n = bad.len() as u64;
    for body in bad {
        let envelope = b.envelope(D, body);
        ignored(&mut b, envelope);
    }
    assert_eq!(b.cluster.stats().malformed, n);
    let mut b = Bench::bring_to(Phase::Reserving);
    let texts = b.say(D, reserved(D2, attempt(1, 1)));
    assert_eq!(texts[..2], ["w1#1 <- #4 abort 1.1", "1.1 resuming"], "a reservation for somebody else");
}

#[test]
fn messages_that_are_not_for_a_cluster() {
    let mut b = Bench::bring_to(Phase::Decoding);
    let n = b.cluster.stats().unexpected;
    for body in [Message::Heartbeat, Message::Abort(attempt(1, 1)), Message::Fence(TransferId(1)), Message::PeerDead(D)]
    {
        let envelope = b.envelope(D, body);
        ignored(&mut b, envelope);
    }
    assert_eq!(b.cluster.stats().unexpected, n + 4);
}

#[test]
fn the_wrong_worker_or_the_wrong_moment() {
    for phase in [Phase::Reserving, Phase::Prefilling, Phase::HandedOff, Phase::Decoding] {
        let mut b = Bench::bring_to(phase);
        b.say(D2, Message::Hello(hello(Role::Decode)));
        let now = attempt(1, 1);
        let mut bodies = vec![
            reserved(D2, now),
            refused(now),
            failed(now),
            Message::Rejected(Rejected { attempt: now, reason: "no".into() }),
            Message::StepReport(activated(now)),
            Message::StepReport(tokens(now, 1, &[66], None)),
            Message::StepReport(StepReport {
                ends: vec![End { attempt: now, reason: FinishReason::Stop }],
                ..Default::default()
            }),
        ];
        let n = bodies.len() as u64;
        for body in bodies.drain(..) {
            let envelope = b.envelope(D2, body);
            ignored(&mut b, envelope);
        }
        assert_eq!(b.cluster.stats().unexpected, n, "{phase}");
        if phase != Phase::Reserving {
            let envelope = b.envelope(D, reserved(D, now));
            ignored(&mut b, envelope);
        } else {
            let envelope = b.envelope(D, Message::StepReport(tokens(now, 0, &[66], Some(FinishReason::Stop))));
            ignored(&mut b, envelope);
        }
    }
}

#[test]
fn lost_work_is_stopped_once() {
    let mut b = Bench::bring_to(Phase::Decoding);
    let stranger = attempt(77, 3);
    assert_eq!(b.report(D, tokens(stranger, 0, &[1], None)), ["w1#1 <- #4 abort 77.3"]);
    assert!(b.report(D, tokens(stranger, 1, &[1], None)).is_empty());
    assert_eq!(b.report(P, activated(stranger)), ["w0#1 <- #4 abort 77.3"]);
    let ended = tokens(attempt(78, 1), 0, &[1], Some(FinishReason::Length));
    assert!(b.report(D, ended).is_empty(), "it has ended by itself");
    assert_eq!(b.say(D, reserved(D, attempt(79, 1))), ["w1#1 <- #5 abort 79.1"]);
}
