//! The token-level scheduler of one worker.
//!
//! There is no prefill state and no decode state: a request has computed positions chasing its known tokens, and a
//! step hands out a token budget. Chunked prefill, prefix hits, recompute after preemption and KV that arrived from
//! elsewhere are all that one subtraction.
//!
//! | file | concern |
//! |---|---|
//! | `config`, `error` | what is told once; what can be told wrong |
//! | `table`, `rows` | a request's cold and hot part |
//! | `queue/` | who is admitted next, who gives way |
//! | `schedule` | one step, stage by stage: room for decodes, decodes, hand-offs, chunks, admission |
//! | `room` | blocks for running requests, preemption |
//! | `flight`, `complete` | steps in flight; what a completion or a failure changes |
//! | `ending` | how requests leave: stop conditions, abort, finish |
//! | `fences` | blocks between two owners |
//! | `hand_off` | reservations, arrivals, release, pins |
//! | `arrays` | a plan as flat arrays |
//! | `check` | integrity |

mod arrays;
mod check;
mod complete;
mod config;
mod ending;
mod error;
mod fences;
mod flight;
mod hand_off;
pub mod queue;
mod room;
mod rows;
mod schedule;
mod table;

pub use arrays::{Opened, StepArrays};
pub use complete::Outputs;
pub use config::SchedulerConfig;
#[doc(hidden)]
pub use config::SeededBug;
pub use ending::Finished;
pub use error::{AddError, CompleteError, ConfigError, ReserveError};
pub use flight::{Entry, StepPlan, TableWrite};
pub use hand_off::{Arrival, Reservation};
pub use table::{PinId, Timing};

use crate::ids::{RequestId, Row, StepId};
use crate::kv::{BlockId, BlockPool, Namespace, NodeRef};
use crate::request::Request;
use crate::time::Time;
use fences::Fences;
use flight::Flight;
use queue::{Fcfs, QueueOrder, Slot};
use rows::Rows;
use smallvec::SmallVec;
use std::collections::VecDeque;
use table::{Cold, Phase, Table};

/// Counters since the start, for metrics and tests. None of them is read by a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps planned.
    pub steps: u64,
    /// Tokens planned.
    pub planned_tokens: u64,
    /// Outputs that counted.
    pub output_tokens: u64,
    /// Outputs of steps in flight that came after their request's end or a failure.
    pub dropped_tokens: u64,
    /// Prompt tokens looked up in the prefix cache by requests that run for the first time.
    pub prefix_queries: u64,
    /// Of those, found.
    pub prefix_hits: u64,
    /// Requests that gave their blocks back to run again later.
    pub preemptions: u64,
    /// Tokens found again in the cache by preempted requests.
    pub recovered_tokens: u64,
    /// Completions and failures of steps that are not in flight.
    pub late_steps: u64,
    /// Calls about requests that are not here.
    pub unknown_requests: u64,
}

/// How a request that is added here will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Generate until it stops.
    Finish,
    /// Compute the prompt, sample the first output, and keep the blocks until [`Scheduler::release`].
    HandOff,
}

/// Decides, step by step, which tokens of which requests one worker computes, and in which blocks.
///
/// ```
/// use pdsched_core::{Goal, Request, Scheduler, SchedulerConfig};
/// let mut scheduler = Scheduler::new(SchedulerConfig::new(64, 16, 8, 256)).unwrap();
/// scheduler.add(Request::new(7, &[1, 2, 3], 2), Goal::Finish, 0).unwrap();
/// let mut outputs = Vec::new();
/// while let Some(step) = scheduler.schedule(0) {
///     let out = scheduler.complete(step, &[42], 0).unwrap();
///     outputs.extend(out.token_ids);
/// }
/// assert_eq!(outputs, [42, 42]);
/// assert!(!scheduler.has_unfinished());
/// ```
pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    table: Table,
    rows: Rows,
    order: Box<dyn QueueOrder>,
    /// Requests whose KV arrived, waiting for a row. They hold blocks, so they go before those that hold none.
    ready: VecDeque<Slot>,
    /// Rows whose prompt is not wholly planned, in order of admission.
    prefilling: Vec<Row>,
    flight: Flight,
    fences: Fences,
    /// Ends not yet told.
    finished: Vec<Finished>,
    /// Rows left and requests preempted since the last step.
    closed: Vec<Row>,
    preempted: Vec<RequestId>,
    /// Hand-offs admitted with a cached prefix, which can be sent before anything of them is computed.
    cached: Vec<(RequestId, u32)>,
    next_arrival: u64,
    stats: Stats,
    /// Scratch for prefix hits.
    hits: Vec<BlockId>,
}

impl Scheduler {
    /// A scheduler over an empty pool, first come, first served.
    pub fn new(config: SchedulerConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let pool = BlockPool::new(config.pool()).expect("the configuration is valid");
        Ok(Self {
            pool,
            table: Table::default(),
            rows: Rows::new(config.num_rows()),
            order: Box::new(Fcfs::default()),
            ready: VecDeque::new(),
            prefilling: Vec::new(),
            flight: Flight::default(),
            fences: Fences::default(),
            finished: Vec::new(),
            closed: Vec::new(),
            preempted: Vec::new(),
            cached: Vec::new(),
            next_arrival: 0,
            stats: Stats::default(),
            hits: Vec::new(),
            config,
        })
    }

    /// Hands a request in. It waits until [`schedule`](Self::schedule) admits it.
    pub fn add(&mut self, request: Request, goal: Goal, now: Time) -> Result<(), AddError> {
        self.validate(&request)?;
        let slot = self.insert(request, Phase::Waiting, goal, now);
        self.order.push(self.table.get(slot).ticket(slot));
        Ok(())
    }

    fn validate(&self, request: &Request) -> Result<(), AddError> {
        let id = request.id;
        let tokens = request.token_ids.len();
        if tokens == 0 {
            return Err(AddError::EmptyPrompt(id));
        }
        if request.prompt_len == 0 || request.prompt_len as usize > tokens {
            return Err(AddError::PromptLen { id, prompt_len: request.prompt_len, tokens });
        }
        let Request { max_tokens, min_tokens, .. } = *request;
        if max_tokens <= request.num_known_outputs() {
            return Err(AddError::NothingToGenerate { id, max_tokens, known: request.num_known_outputs() });
        }
        if min_tokens > max_tokens {
            return Err(AddError::MinTokens { id, min_tokens, max_tokens });
        }
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        if let Some(max_model_len) = self.config.max_model_len
            && tokens >= max_model_len
        {
            return Err(AddError::LongerThanModel { id, tokens, max_model_len });
        }
        // The last token is sampled, never computed: with a single output to go the known tokens must fit, else one more.
        let one_more = u32::from(max_tokens - request.num_known_outputs() > 1);
        let needed = tokens.saturating_add(one_more).div_ceil(self.config.block_size);
        let usable = self.pool.num_usable();
        if needed > usable {
            return Err(AddError::LargerThanPool { id, tokens, needed, usable });
        }
        if self.table.find(id).is_some() {
            return Err(AddError::Duplicate(id));
        }
        Ok(())
    }

    fn insert(&mut self, request: Request, phase: Phase, goal: Goal, now: Time) -> Slot {
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        self.table.insert(Cold {
            arrival,
            phase,
            tokens: request.token_ids.to_vec(),
            blocks: Vec::new(),
            registered: 0,
            node: NodeRef::root(Namespace(request.namespace)),
            pending: 0,
            newest: StepId(0),
            pins: SmallVec::new(),
            hand_off: goal == Goal::HandOff,
            timing: Timing { arrived: now, ..Timing::default() },
            request,
        })
    }

    /// The plan of a step in flight.
    pub fn step(&self, step: StepId) -> Option<&StepPlan> {
        self.flight.get(step).map(|(plan, _)| plan)
    }

    /// Requests that a step in flight names and that are still in the rows it names.
    pub fn requests_of(&self, step: StepId) -> Vec<RequestId> {
        let entries = self.step(step).map_or(&[][..], |plan| &plan.entries);
        let rows = entries.iter().map(|entry| (entry, self.rows.get(entry.row)));
        rows.filter(|(entry, hot)| hot.run == entry.run).map(|(_, hot)| hot.id).collect()
    }

    /// Something is still to be done or released.
    pub fn has_unfinished(&self) -> bool {
        self.table.len() > 0
    }

    /// Requests not ended.
    pub fn num_unfinished(&self) -> usize {
        self.table.len()
    }

    /// Requests with a row.
    pub fn num_running(&self) -> u32 {
        self.rows.in_use()
    }

    /// Requests in the queue, without blocks.
    pub fn num_waiting(&self) -> usize {
        self.order.len()
    }

    /// Requests whose KV is here and that wait for a row.
    pub fn num_ready(&self) -> usize {
        self.ready.len()
    }

    /// All steps up to this one are done.
    pub fn completed_through(&self) -> StepId {
        self.flight.completed
    }

    /// Steps planned and not done.
    pub fn num_in_flight(&self) -> usize {
        self.flight.len()
    }

    /// Nothing unfinished, nothing in flight, no block owned (but retired ones): what a drained scheduler must reach.
    pub fn is_idle(&self) -> bool {
        !self.has_unfinished()
            && self.flight.len() == 0
            && self.fences.is_empty()
            && self.pool.num_used() == self.fences.num_retired()
    }

    /// Tokens still to be planned of requests that are not decoding: the queue a newcomer would find.
    pub fn num_prefill_tokens(&self) -> u64 {
        let running = self.prefilling.iter().map(|&row| {
            let hot = self.rows.get(row);
            u64::from(hot.num_tokens() - hot.planned)
        });
        let waiting = self.order.slots();
        running.sum::<u64>() + waiting.iter().map(|&slot| self.table.get(slot).tokens.len() as u64).sum::<u64>()
    }

    /// Tokens known of a request (prompt and confirmed outputs).
    pub fn tokens(&self, id: RequestId) -> Option<&[u32]> {
        Some(&self.table.get(self.table.find(id)?).tokens)
    }

    /// Blocks of a request, in the order of its positions.
    pub fn blocks(&self, id: RequestId) -> Option<&[BlockId]> {
        Some(&self.table.get(self.table.find(id)?).blocks)
    }

    pub(crate) fn has_bug(&self, bug: SeededBug) -> bool {
        self.config.seeded_bug == Some(bug)
    }

    /// The pool, to look at.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// When something is due by the clock alone. Nothing is yet: every wait of this half ends by an event.
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Forgets all cached prefixes; refused (and nothing changed) while any block is owned.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset_prefix_cache()
    }
}
