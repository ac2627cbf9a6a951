//! What must always be true of the ledger: every sum is what its bookings add up to.

use super::ledger::{Cover, Ledger};
use crate::ids::{RequestId, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default, PartialEq)]
struct Sums {
    booked: u64,
    growth: u64,
    prefill_booked: u64,
    placements: u32,
    awaited_decode: BTreeSet<(u64, RequestId)>,
    awaited_prefill: BTreeSet<(u64, RequestId)>,
}

impl Ledger {
    pub fn check(&self) -> Result<(), String> {
        let mut sums: BTreeMap<WorkerId, Sums> =
            self.accounts.keys().map(|worker| (*worker, Sums::default())).collect();
        for (request, booking) in &self.bookings {
            if booking.decode.is_none() && booking.prefill.is_none() {
                return Err(format!("request {request} has an empty booking"));
            }
            for (half, is_decode) in [(booking.decode, true), (booking.prefill, false)] {
                let Some(half) = half else { continue };
                let sum = sums
                    .get_mut(&half.worker)
                    .ok_or(format!("request {request} is booked on unknown w{}", half.worker))?;
                sum.placements += 1;
                sum.growth += if is_decode { booking.growth() } else { 0 };
                if half.cover != Cover::Covered {
                    *(if is_decode { &mut sum.booked } else { &mut sum.prefill_booked }) += half.tokens;
                }
                if let Cover::Sent(seq) = half.cover {
                    let awaited = if is_decode { &mut sum.awaited_decode } else { &mut sum.awaited_prefill };
                    awaited.insert((seq, *request));
                }
            }
        }
        for (worker, account) in &self.accounts {
            let kept = Sums {
                booked: account.load.booked,
                growth: account.load.expected_growth,
                prefill_booked: account.prefill_booked,
                placements: account.load.placements,
                awaited_decode: account.awaited_decode.clone(),
                awaited_prefill: account.awaited_prefill.clone(),
            };
            if kept != sums[worker] {
                return Err(format!("w{worker}: kept {kept:?}, bookings add up to {:?}", sums[worker]));
            }
        }
        Ok(())
    }
}
