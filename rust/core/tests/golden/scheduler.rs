//! The language of the scheduler's golden files.
//!
//! | command | meaning |
//! |---|---|
//! | `config FIELD=N ...` | a new scheduler, see [`scheduler_config`] |
//! | `add ID TEXT MAX_TOKENS [hand_off] [FIELD=...]` | a request, see [`request`] and [`text`](super::words::text) |
//! | `schedule` | plans a step and prints it |
//! | `complete STEP TOKEN ...`, `fail STEP` | its end, with one token per `*` of the plan |
//! | `abort ID` | |
//! | `reserve ID TEXT MAX_TOKENS`, `arrived ID FROM..TO`, `hand_over ID TOKEN` | decode side of a hand-off |
//! | `release ID`, `pin ID PIN`, `unpin ID PIN` | prefill side |
//! | `state`, `blocks ID`, `tokens ID`, `stats` | views; `stats` shows what is not zero |
//!
//! A plan reads: request, positions `[from..to]`, `*` where a token is sampled, `?` where the token to be computed is
//! still being sampled; then the changes of the block table as `row,column=block`.

use super::runner::Machine;
use super::words::{counters, number, request, scheduler_config, small};
use pdsched_core::ids::{RequestId, StepId};
use pdsched_core::message::TokenRange;
use pdsched_core::scheduler::{Arrival, Goal, Outputs, Scheduler, SchedulerConfig, StepArrays};
use pdsched_core::time::Time;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A scheduler driven by text. Each command takes a millisecond.
pub struct SchedulerMachine {
    scheduler: Scheduler,
    now: Time,
    /// Whose a row is, as the runner learnt it.
    rows: BTreeMap<i32, u64>,
}

impl Default for SchedulerMachine {
    fn default() -> Self {
        Self { scheduler: Scheduler::new(SchedulerConfig::new(8, 4, 4, 64)).unwrap(), now: 0, rows: BTreeMap::new() }
    }
}

impl Machine for SchedulerMachine {
    fn exec(&mut self, line: &str) -> String {
        self.now += 1_000_000;
        let words: Vec<&str> = line.split_whitespace().collect();
        let text = self.command(&words).unwrap_or_else(|| panic!("cannot read: {line}"));
        self.scheduler.check().unwrap();
        text
    }
}

impl SchedulerMachine {
    fn command(&mut self, words: &[&str]) -> Option<String> {
        let now = self.now;
        let id = words.get(1).copied().and_then(|word| word.parse().ok()).map(RequestId);
        Some(match *words {
            ["config", ref fields @ ..] => match Scheduler::new(scheduler_config(fields)) {
                Ok(scheduler) => {
                    (self.scheduler, self.rows) = (scheduler, BTreeMap::new());
                    String::new()
                }
                Err(error) => error.to_string(),
            },
            ["add", _, ref rest @ ..] => self.add(id?, rest),
            ["schedule"] => self.schedule(),
            ["complete", step, ref tokens @ ..] => {
                let tokens: Vec<i64> = tokens.iter().map(|token| token.parse().unwrap()).collect();
                let outputs = self.scheduler.complete(StepId(number(step)), &tokens, now);
                outputs.map_or_else(|error| error.to_string(), |outputs| self.outputs(&outputs))
            }
            ["fail", step] => {
                let outputs = self.scheduler.fail(StepId(number(step)), now);
                outputs.map_or_else(|error| error.to_string(), |outputs| self.outputs(&outputs))
            }
            ["abort", _] => {
                let known = self.scheduler.abort(id?, now);
                let ends = Outputs { finished: self.scheduler.take_finished(), ..Outputs::default() };
                if known { self.outputs(&ends) } else { "unknown".into() }
            }
            ["reserve", _, ref rest @ ..] => match self.scheduler.reserve(request(id?.0, rest), now) {
                Ok(made) => format!("missing {} blocks {}", made.missing, list(&made.blocks)),
                Err(error) => error.to_string(),
            },
            ["arrived", _, range] => {
                let (start, end) = range.split_once("..")?;
                let range = TokenRange { start: small(start), end: small(end) };
                let arrival = self.scheduler.arrived(id?, range, now);
                self.arrival(arrival)
            }
            ["hand_over", _, token] => {
                let arrival = self.scheduler.hand_over(id?, small(token), now);
                self.arrival(arrival)
            }
            ["release", _] => known(self.scheduler.release(id?, now)),
            ["pin", _, pin] => known(self.scheduler.pin(id?, number(pin))),
            ["unpin", _, pin] => known(self.scheduler.unpin(id?, number(pin))),
            ["state"] => self.state(),
            ["blocks", _] => self.scheduler.blocks(id?).map_or_else(|| "unknown".into(), list),
            ["tokens", _] => self
                .scheduler
                .tokens(id?)
                .map_or_else(|| "unknown".into(), |tokens| format!("{} {tokens:?}", tokens.len())),
            ["stats"] => counters(&format!("{:?}", self.scheduler.stats())),
            _ => return None,
        })
    }

    fn add(&mut self, id: RequestId, words: &[&str]) -> String {
        let (goal, words): (_, Vec<&str>) = match words.contains(&"hand_off") {
            true => (Goal::HandOff, words.iter().copied().filter(|&w| w != "hand_off").collect()),
            false => (Goal::Finish, words.to_vec()),
        };
        match self.scheduler.add(request(id.0, &words), goal, self.now) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    fn schedule(&mut self) -> String {
        let Some(step) = self.scheduler.schedule(self.now) else {
            return "nothing to plan".into();
        };
        for opened in self.scheduler.opened(step) {
            self.rows.insert(opened.row.0 as i32, opened.id);
        }
        let mut arrays = StepArrays::default();
        assert!(self.scheduler.build_arrays(step, &mut arrays));
        let plan = self.scheduler.step(step).unwrap();
        let mut text = format!("step {step}:");
        for (index, entry) in plan.entries.iter().enumerate() {
            let id = self.rows[&(entry.row.0 as i32)];
            write!(text, " {id}[{}..{}]", entry.start, entry.end()).unwrap();
            if arrays.gather_positions.contains(&arrays.query_start_loc[index]) {
                text.push('?');
            }
            if entry.samples() {
                text.push('*');
            }
        }
        if !plan.table_diff.is_empty() {
            let write = |w: &pdsched_core::scheduler::TableWrite| format!("{},{}={}", w.row, w.column, w.block.0);
            let writes: Vec<_> = plan.table_diff.iter().map(write).collect();
            write!(text, "\n  table {}", writes.join(" ")).unwrap();
        }
        for id in &plan.preempted {
            write!(text, "\n  preempted {id}").unwrap();
        }
        text
    }

    fn outputs(&self, out: &Outputs) -> String {
        let mut text = String::new();
        for (id, computed) in &out.progress {
            writeln!(text, "{id} computed {computed}").unwrap();
        }
        for (id, token) in out.request_ids.iter().zip(&out.token_ids) {
            writeln!(text, "{id} -> {token}").unwrap();
        }
        for id in &out.held {
            writeln!(text, "{id} held").unwrap();
        }
        for end in &out.finished {
            let reason = end.reason.map_or("released", |reason| reason.as_str());
            let (id, outputs, cached) = (end.id, end.num_outputs, end.timing.num_cached_tokens);
            writeln!(text, "{id} ends: {reason}, {outputs} outputs, {cached} cached").unwrap();
        }
        if text.is_empty() { "nothing".into() } else { text }
    }

    fn arrival(&mut self, arrival: Arrival) -> String {
        let ends = Outputs { finished: self.scheduler.take_finished(), ..Outputs::default() };
        let text = match arrival {
            Arrival::Waiting => "waiting",
            Arrival::Complete => "complete",
            Arrival::Unknown => "unknown",
        };
        match ends.finished.is_empty() {
            true => text.into(),
            false => format!("{text}\n{}", self.outputs(&ends)),
        }
    }

    fn state(&self) -> String {
        let (scheduler, pool) = (&self.scheduler, self.scheduler.pool());
        let (free, used, cached) = (pool.num_free(), pool.num_used(), pool.num_cached());
        let (running, waiting, ready) = (scheduler.num_running(), scheduler.num_waiting(), scheduler.num_ready());
        let (flight, idle) = (scheduler.num_in_flight(), scheduler.is_idle());
        format!(
            "free={free} used={used} cached={cached} running={running} waiting={waiting} ready={ready} \
             in_flight={flight} idle={idle}"
        )
    }
}

fn known(known: bool) -> String {
    if known { "done".into() } else { "unknown".into() }
}

fn list(blocks: &[pdsched_core::kv::BlockId]) -> String {
    let blocks: Vec<_> = blocks.iter().map(|block| block.0.to_string()).collect();
    blocks.join(" ")
}
