//! Behaviour of placement and of the books; `bNNN` pins a case of the field reports.

use super::*;

const W0: WorkerId = WorkerId(0);
const W1: WorkerId = WorkerId(1);

fn balancer(role: Role, capacities: &[u64]) -> LoadBalancer {
    let mut balancer = LoadBalancer::new();
    for (worker, capacity) in capacities.iter().enumerate() {
        balancer.add_worker(WorkerId(worker as u32), role, *capacity);
    }
    balancer
}

fn id(n: u64) -> RequestId {
    RequestId(n)
}

fn used(seq: u64, acked_seq: u64, used_tokens: u64) -> Report {
    Report { seq, acked_seq, used_tokens, prefill_tokens: 0 }
}

fn load(balancer: &LoadBalancer, worker: WorkerId) -> WorkerLoad {
    balancer.check().unwrap();
    balancer.load(worker).unwrap()
}

#[test]
fn occupancy_is_a_share_of_the_workers_own_capacity() {
    let mut b = balancer(Role::Decode, &[1_000, 4_000]);
    b.report(W0, used(1, 0, 300));
    b.report(W1, used(1, 0, 800));
    assert_eq!(b.choose_decode(100, 0), Some(W1), "900/4000 is less full than 400/1000");
    assert!((load(&b, W0).occupancy() - 0.3).abs() < 1e-9);
}

#[test]
fn what_can_never_fit_is_no_candidate() {
    let b = balancer(Role::Decode, &[64, 128]);
    assert_eq!(b.choose_decode(63, 0), Some(W1));
    assert_eq!(b.choose_decode(64, 0), Some(W1), "64 tokens and the next one need 65");
    assert_eq!(b.choose_decode(127, 1_000), Some(W1), "expected growth does not exclude");
    assert_eq!(b.choose_decode(128, 0), None);
}

#[test]
fn roles_are_kept_apart() {
    let mut b = balancer(Role::Decode, &[100]);
    assert_eq!((b.choose_prefill(1), b.choose_both(1, 1)), (None, None));
    b.add_worker(W1, Role::Both, 100);
    assert_eq!(b.place_both(id(1), 10, 5), Some(W1));
    assert_eq!(b.placement(id(1)), (Some(W1), Some(W1)));
}

#[test]
fn a_burst_between_two_reports_spreads() {
    let mut b = balancer(Role::Decode, &[10_000; 4]);
    let mut counts = [0; 4];
    for n in 0..40 {
        counts[b.place_decode(id(n), 100, 100).unwrap().0 as usize] += 1;
    }
    assert_eq!(counts, [10; 4]);
}

#[test]
fn a_report_covers_what_it_acknowledges_and_nothing_else() {
    let mut b = balancer(Role::Decode, &[1_000]);
    for n in 1..=3 {
        b.place_decode(id(n), 100, 50);
        b.sent(id(n), W0, n);
    }
    b.place_decode(id(4), 100, 50); // decided, not sent yet
    assert!(b.report(W0, used(1, 2, 208)));
    let l = load(&b, W0);
    assert_eq!((l.held, l.booked, l.expected_growth), (208, 200, 200));
    assert_eq!(l.room(), 1_000 - 408);
    assert!(!b.report(W0, used(1, 3, 0)), "the same report again");
    assert_eq!((load(&b, W0), b.stale_reports()), (l, 1));
}

#[test]
fn growth_moves_from_expected_to_held() {
    let mut b = balancer(Role::Decode, &[1_000]);
    b.place_decode(id(1), 100, 20);
    b.grow(id(1), 105);
    assert_eq!((load(&b, W0).booked, load(&b, W0).expected_growth), (105, 15));
    b.sent(id(1), W0, 1);
    b.report(W0, used(1, 1, 112));
    b.grow(id(1), 130);
    b.grow(id(1), 120); // late: it never shrinks
    let l = load(&b, W0);
    assert_eq!((l.held, l.booked, l.expected_growth), (137, 0, 0), "longer than expected: nothing more is expected");
}

#[test]
fn prefill_goes_to_the_shortest_queue_in_tokens() {
    let mut b = balancer(Role::Prefill, &[100_000; 2]);
    assert_eq!(b.place_prefill(id(1), 5_000), Some(W0));
    for n in 2..=5 {
        assert_eq!(b.place_prefill(id(n), 1_000), Some(W1));
    }
    b.prefill_progress(id(1), 4_500);
    assert_eq!(b.place_prefill(id(6), 1_000), Some(W0));
    b.sent(id(1), W0, 1);
    b.report(W0, Report { seq: 1, acked_seq: 1, used_tokens: 0, prefill_tokens: 700 });
    assert_eq!(load(&b, W0).queued_prefill, 1_700);
    b.prefill_progress(id(1), 4_600);
    assert_eq!(load(&b, W0).queued_prefill, 1_600);
    b.release_prefill(id(1));
    assert_eq!(load(&b, W0).queued_prefill, 1_200, "reported is an estimate: what request 1 had left is gone");
}

#[test]
fn calls_about_strangers_change_nothing() {
    let mut b = balancer(Role::Decode, &[100]);
    let before = b.loads();
    b.grow(id(9), 10);
    b.prefill_progress(id(9), 10);
    b.release_prefill(id(9));
    b.sent(id(9), W0, 1);
    assert!(!b.release(id(9)) && !b.set_health(W1, true) && !b.report(W1, used(1, 1, 1)));
    assert!(b.remove_worker(W1).is_empty() && !b.book_decode(W1, id(9), 1, 1));
    assert_eq!((b.loads(), b.num_placed()), (before, 0));
}

#[test]
fn a_placed_request_stays_where_it_is() {
    let mut b = balancer(Role::Decode, &[100; 2]);
    assert_eq!(b.place_decode(id(1), 10, 0), Some(W0));
    assert_eq!(b.place_decode(id(1), 10, 0), Some(W0));
    assert_eq!(load(&b, W0).booked, 10);
}

#[test]
fn b110_every_worker_gets_its_share_whenever_it_registered() {
    let mut b = balancer(Role::Decode, &[100_000; 3]);
    let mut counts = [0u32; 5];
    for n in 0..500 {
        if n == 1 {
            b.add_worker(WorkerId(3), Role::Decode, 100_000);
            b.add_worker(WorkerId(4), Role::Decode, 100_000);
        }
        if n >= 256 {
            b.release(id(n - 256));
        }
        counts[b.place_decode(id(n), 64, 64).unwrap().0 as usize] += 1;
    }
    assert!(counts.iter().all(|count| (80..=120).contains(count)), "{counts:?}");
}

#[test]
fn b113_books_are_zero_after_everything_left() {
    let mut b = balancer(Role::Decode, &[10_000; 2]);
    b.add_worker(WorkerId(2), Role::Prefill, 10_000);
    b.add_worker(WorkerId(3), Role::Both, 10_000);
    for n in 0..1_000 {
        let decode = if n % 4 == 3 { b.place_both(id(n), n, 7) } else { b.place_decode(id(n), n, 7) }.unwrap();
        b.place_prefill(id(n), n);
        match n % 5 {
            0 => b.sent(id(n), decode, n + 1),
            1 => b.grow(id(n), n + 3),
            2 => b.prefill_progress(id(n), n / 2),
            3 => b.release_prefill(id(n)),
            _ => {}
        }
        if n % 50 == 0 {
            b.report(decode, Report { seq: n + 1, acked_seq: n, used_tokens: 50, prefill_tokens: 10 });
        }
        b.check().unwrap();
    }
    (0..1_000).for_each(|n| assert!(b.release(id(n))));
    for worker in 0..4 {
        let l = load(&b, WorkerId(worker));
        assert_eq!((l.booked, l.expected_growth, l.placements), (0, 0, 0));
        b.report(WorkerId(worker), used(5_000, 5_000, 0));
        let l = load(&b, WorkerId(worker));
        assert_eq!((l.occupied(), l.queued_prefill), (0, 0));
    }
    assert_eq!(b.num_placed(), 0);
}

#[test]
fn b114_a_second_registration_keeps_the_load() {
    let mut b = balancer(Role::Decode, &[10_000; 2]);
    for n in 0..10 {
        b.book_decode(W0, id(n), 50, 0);
    }
    b.report(W1, used(1, 0, 100));
    b.set_health(W0, false);
    b.set_health(W0, true);
    assert!(!b.add_worker(W0, Role::Decode, 10_000));
    assert_eq!(load(&b, W0).booked, 500);
    (10..14).for_each(|n| assert_eq!(b.place_decode(id(n), 50, 0), Some(W1)));
    (0..14).for_each(|n| assert!(b.release(id(n))));
    assert_eq!((load(&b, W0).booked, load(&b, W1).booked), (0, 0));
}

#[test]
fn b117_a_dead_worker_is_not_chosen_and_comes_back_empty() {
    let mut b = balancer(Role::Decode, &[1_000; 2]);
    b.report(W1, used(40, 0, 900));
    (0..5).for_each(|n| assert_eq!(b.place_decode(id(n), 10, 0), Some(W0)));
    assert_eq!(b.remove_worker(W0), (0..5).map(RequestId).collect::<Vec<_>>());
    assert_eq!(b.choose_decode(10, 0), Some(W1));
    b.add_worker(W0, Role::Decode, 1_000);
    assert_eq!(load(&b, W0).occupied(), 0);
    assert!(b.report(W0, used(1, 0, 5)), "its numbers start again");
    assert_eq!(b.num_placed(), 0);
}

#[test]
fn half_a_placement_survives_the_loss_of_the_other() {
    let mut b = balancer(Role::Decode, &[1_000]);
    b.add_worker(W1, Role::Prefill, 1_000);
    b.place_decode(id(1), 10, 5);
    b.place_prefill(id(1), 10);
    assert_eq!(b.remove_worker(W1), [id(1)]);
    assert_eq!((b.placement(id(1)), load(&b, W0).booked), ((None, Some(W0)), 10));
    assert!(b.release(id(1)));
    assert_eq!(load(&b, W0).occupied(), 0);
}

#[test]
fn b120_a_release_counts_once() {
    let mut b = balancer(Role::Decode, &[1_000; 2]);
    for n in 0..100 {
        assert!(!b.release(id(n)), "failed before it was counted");
    }
    let mut counts = [0; 2];
    for n in 0..100 {
        counts[b.place_decode(id(n), 1, 1).unwrap().0 as usize] += 1;
    }
    assert_eq!(counts, [50, 50]);
}

#[test]
fn b121_tokens_weigh_not_requests() {
    let mut b = balancer(Role::Decode, &[1_000_000; 2]);
    b.book_decode(W0, id(1_000), 10_000, 0);
    b.book_decode(W1, id(1_001), 1_000, 0);
    b.book_decode(W1, id(1_002), 1_000, 0);
    assert_eq!(b.place_decode(id(1_003), 1_000, 0), Some(W1));
    for n in 0..40 {
        b.place_decode(id(n), if n % 2 == 0 { 8_000 } else { 100 }, 0);
    }
    let (a, b) = (load(&b, W0).occupied() as f64, load(&b, W1).occupied() as f64);
    assert!(a.max(b) / a.min(b) <= 1.2, "{a} {b}");
}

#[test]
fn b122_parity_of_ids_does_not_matter() {
    for offset in [0, 1] {
        let mut b = balancer(Role::Decode, &[1_000_000; 2]);
        for n in 0..40 {
            b.place_decode(id(2 * n + offset), if n % 2 == 0 { 8_000 } else { 100 }, 0);
        }
        let (a, b) = (load(&b, W0).occupied() as f64, load(&b, W1).occupied() as f64);
        assert!(a.max(b) / a.min(b) <= 1.2, "{a} {b}");
    }
}

#[test]
fn b123_a_backlog_without_kv_counts() {
    let mut b = balancer(Role::Both, &[100_000; 2]);
    b.report(W0, Report { seq: 1, acked_seq: 0, used_tokens: 0, prefill_tokens: 10_000 });
    b.report(W1, used(1, 0, 5_000));
    assert_eq!(b.place_both(id(1), 1_000, 0), Some(W1));
}

#[test]
fn an_unhealthy_worker_gets_nothing_and_keeps_its_books() {
    let mut b = balancer(Role::Decode, &[1_000; 2]);
    b.place_decode(id(1), 10, 0);
    b.set_health(W0, false);
    b.place_decode(id(2), 500, 0);
    assert_eq!(b.place_decode(id(3), 10, 0), Some(W1));
    b.set_health(W0, true);
    assert_eq!(b.place_decode(id(4), 10, 0), Some(W0));
    assert_eq!(load(&b, W0).booked, 20);
}
