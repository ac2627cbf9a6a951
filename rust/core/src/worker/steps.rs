//! Steps: the scheduler's calls, and what of their results others must hear.

use super::Worker;
use super::leg::{Leg, Part};
use crate::ids::{RequestId, StepId};
use crate::message::{End, FailReason, Message, StepReport};
use crate::request::FinishReason;
use crate::scheduler::{CompleteError, Finished, Outputs};
use crate::time::Time;

impl Worker {
    /// Plans a step; as [`Scheduler::schedule`](crate::Scheduler::schedule).
    pub fn schedule(&mut self, now: Time) -> Option<StepId> {
        let step = self.scheduler.schedule(now);
        for (local, cached) in self.scheduler.take_cached() {
            if let Some(Leg { part: Part::Outbound(key), .. }) = self.legs.get(local) {
                self.send_computed(key, cached);
            }
        }
        self.publish_ends();
        step
    }

    /// A step ran. Its results leave as actions.
    pub fn complete(&mut self, step: StepId, tokens: &[i64], now: Time) -> Result<(), CompleteError> {
        let in_flight = self.scheduler.step(step).is_some();
        let outputs = self.scheduler.complete(step, tokens, now)?;
        if in_flight {
            self.failures = 0;
        }
        self.publish(outputs, now);
        Ok(())
    }

    /// A step failed, and nothing of it runs any more. Its requests are planned again; after several failures in a row
    /// they are given back to the cluster.
    pub fn fail(&mut self, step: StepId, now: Time) -> Result<(), CompleteError> {
        let in_flight = self.scheduler.step(step).is_some();
        let requests = self.scheduler.requests_of(step);
        let outputs = self.scheduler.fail(step, now)?;
        self.stats.failed_steps += u64::from(in_flight);
        self.failures += u32::from(in_flight);
        self.publish(outputs, now);
        if self.failures >= self.config.max_step_failures {
            self.failures = 0;
            for local in requests {
                self.give_back(local, now);
            }
        }
        Ok(())
    }

    fn give_back(&mut self, local: RequestId, now: Time) {
        if let Some(leg) = self.legs.get(local) {
            self.abort(leg.attempt, now);
            self.fail_attempt(leg.attempt, FailReason::StepFailed);
        }
    }

    fn publish(&mut self, outputs: Outputs, now: Time) {
        let mut report = StepReport::default();
        for &(local, computed) in &outputs.progress {
            if let Some(leg) = self.legs.get(local)
                && let Part::Outbound(key) = leg.part
            {
                report.progress.push((leg.attempt, computed));
                self.send_computed(key, computed);
            }
        }
        for (&local, &token) in outputs.request_ids.iter().zip(&outputs.token_ids) {
            self.report_token(RequestId(local), token as u32, &outputs, &mut report, now);
        }
        self.report_finished(&outputs.finished, &mut report);
        if report != StepReport::default() {
            self.tell_cluster(Message::StepReport(report));
        }
    }

    fn report_token(&mut self, local: RequestId, token: u32, outputs: &Outputs, report: &mut StepReport, now: Time) {
        let Some(leg) = self.legs.get_mut(local) else { return };
        let index = leg.next_index;
        leg.next_index += 1;
        let leg = *leg;
        report.attempts.push(leg.attempt);
        report.first_index.push(index);
        report.counts.push(1);
        report.token_ids.push(token);
        if let Part::Outbound(key) = leg.part {
            let finish = outputs.finished.iter().find(|finished| finished.id == local).and_then(|f| f.reason);
            if finish.is_some() {
                report.ends.extend(finish.map(|reason| End { attempt: leg.attempt, reason }));
            }
            self.hand_over(key, index, token, finish, now);
        }
    }

    /// Ends that planning alone brought (a request that outgrew the pool).
    fn publish_ends(&mut self) {
        let mut report = StepReport::default();
        self.report_ends(&mut report);
        if !report.ends.is_empty() {
            self.tell_cluster(Message::StepReport(report));
        }
    }

    /// Ends that the scheduler decided and has not told yet.
    pub(super) fn report_ends(&mut self, report: &mut StepReport) {
        let finished = self.scheduler.take_finished();
        self.report_finished(&finished, report);
    }

    fn report_finished(&mut self, finished: &[Finished], report: &mut StepReport) {
        for end in finished {
            // Those we ended ourselves have no leg any more.
            if let (Some(leg), Some(reason)) = (self.legs.get(end.id), end.reason)
                && reason != FinishReason::Abort
            {
                report.ends.push(End { attempt: leg.attempt, reason });
                self.legs.remove(end.id);
            }
        }
    }
}
