//! Integrity of a worker: its scheduler's, and that transfers, legs and pins agree.

use super::leg::Part;
use super::{Worker, inbound, outbound};

impl Worker {
    /// Verifies everything; the text says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.scheduler.check()?;
        let mut legs = 0;
        for attempt in self.legs.attempts() {
            let (local, leg) = self.legs.find(attempt).ok_or("an attempt without a leg")?;
            legs += 1;
            if self.scheduler.tokens(local).is_none() {
                return Err(format!("attempt {attempt} is unknown to the scheduler"));
            }
            let held = match leg.part {
                Part::Run => true,
                Part::Inbound(transfer) => {
                    self.inbound.get(&transfer).is_some_and(|i| i.local == local && !i.is_quarantined())
                }
                Part::Outbound(key) => self.outbound.get(&key).is_some_and(|o| o.local == local),
            };
            if !held {
                return Err(format!("attempt {attempt}: no transfer behind {:?}", leg.part));
            }
        }
        if legs != self.scheduler.num_unfinished() || legs != self.legs.len() {
            return Err(format!("{legs} legs, {} requests in the scheduler", self.scheduler.num_unfinished()));
        }
        for (transfer, inbound) in &self.inbound {
            let alive = self.legs.get(inbound.local).is_some();
            if alive != matches!(inbound.state, inbound::State::Receiving { .. }) {
                return Err(format!("reservation {transfer}: {:?} with its request alive = {alive}", inbound.state));
            }
        }
        for (key, outbound) in &self.outbound {
            let alive = self.legs.get(outbound.local).is_some();
            if alive != matches!(outbound.state, outbound::State::Sending { .. }) {
                return Err(format!("transfer {key:?}: {:?} with its request alive = {alive}", outbound.state));
            }
        }
        Ok(())
    }
}
