//! One step, stage by stage. Each stage adds to the plan, which is thrown away when nothing came of it.

use super::flight::{StepPlan, TableWrite};
use super::queue::Slot;
use super::rows::{FIRST, HAND_OFF, Hot, STOPS};
use super::table::Phase;
use super::{Scheduler, SeededBug, Stats};
use crate::ids::{Row, StepId};
use crate::kv::Namespace;
use crate::time::Time;

impl Scheduler {
    /// Plans a step, or `None` when nothing can be planned now: no work, no blocks until something completes, or as
    /// many steps in flight as allowed.
    pub fn schedule(&mut self, now: Time) -> Option<StepId> {
        if self.flight.len() >= self.config.max_steps_in_flight as usize {
            return None;
        }
        let mut plan = self.flight.fresh_plan(now);
        self.make_room(&mut plan, now);
        self.plan_decodes(&mut plan);
        self.admit_ready(&mut plan, now);
        self.plan_chunks(&mut plan);
        self.admit_waiting(&mut plan, now);
        self.launch(plan)
    }

    /// Every decoding row gets its next token.
    fn plan_decodes(&mut self, plan: &mut StepPlan) {
        let step = plan.id;
        for index in 0..self.rows.decoding_words() {
            let mut bits = self.rows.decoding_word(index);
            while bits != 0 {
                let row = Row(index as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
                let hot = self.rows.get_mut(row);
                if !hot.wants_step() || (hot.planned == hot.room && !self.grow(row, plan)) {
                    continue;
                }
                let hot = self.rows.get_mut(row);
                let start = hot.planned;
                hot.planned += 1;
                hot.pending += 1;
                hot.newest = step;
                plan.push_decode(row, hot.run, start);
            }
        }
    }

    /// Requests whose KV arrived take a row and decode.
    fn admit_ready(&mut self, plan: &mut StepPlan, now: Time) {
        while let Some(&slot) = self.ready.front() {
            if !self.row_available() || plan.num_tokens >= self.config.max_num_batched_tokens {
                break;
            }
            // The last row is left to an earlier request that waits and could have its blocks.
            if self.rows.in_use() + 1 == self.config.max_num_seqs && self.head_comes_before(slot, now) {
                break;
            }
            let known = self.table.get(slot).tokens.len() as u32;
            let row = self.open_row(slot, known - 1, plan, now);
            self.ready.pop_front();
            self.rows.set_decoding(row, true);
            let hot = self.rows.get_mut(row);
            debug_assert!(hot.wants_step() && hot.planned < hot.room, "a reservation has room for the next token");
            let start = hot.planned;
            hot.planned += 1;
            hot.pending += 1;
            plan.push_decode(row, hot.run, start);
        }
    }

    /// The head of the queue arrived before this request and there are blocks for it.
    fn head_comes_before(&mut self, slot: Slot, now: Time) -> bool {
        let Some(head) = self.order.peek(now) else { return false };
        let earlier = self.table.get(head).arrival < self.table.get(slot).arrival;
        earlier && self.table.get(head).newest <= self.flight.completed && self.blocks_for(head) <= self.pool.num_free()
    }

    /// Blocks that the whole sequence of a waiting request takes, cached ones included.
    pub(super) fn blocks_for(&self, slot: Slot) -> u32 {
        (self.table.get(slot).tokens.len() as u32).div_ceil(self.config.block_size)
    }

    /// Prompts in progress go on.
    fn plan_chunks(&mut self, plan: &mut StepPlan) {
        let mut rows = std::mem::take(&mut self.prefilling);
        rows.retain(|&row| !self.plan_chunk(row, plan));
        rows.append(&mut self.prefilling);
        self.prefilling = rows;
    }

    /// Plans as much of a prompt as the budget and the chunk allow. True when nothing of it is left to plan.
    fn plan_chunk(&mut self, row: Row, plan: &mut StepPlan) -> bool {
        let budget = self.config.max_num_batched_tokens - plan.num_tokens;
        let chunk = self.config.chunk_size.unwrap_or(u32::MAX);
        let hot = self.rows.get_mut(row);
        let left = hot.num_tokens() - hot.planned;
        let len = left.min(budget).min(chunk);
        if len == 0 {
            return false;
        }
        let (start, run, last) = (hot.planned, hot.run, len == left);
        hot.planned += len;
        hot.newest = plan.id;
        hot.pending += u32::from(last);
        plan.push_chunk(row, run, start, len, last);
        if last {
            self.rows.set_decoding(row, true);
        }
        last
    }

    /// Waiting requests are admitted while budget, rows and blocks last. The first that cannot be stops the rest.
    fn admit_waiting(&mut self, plan: &mut StepPlan, now: Time) {
        while plan.num_tokens < self.config.max_num_batched_tokens && self.row_available() {
            let Some(slot) = self.order.peek(now) else { break };
            let cold = self.table.get(slot);
            if cold.newest > self.flight.completed {
                break; // preempted, and a step in flight still brings it a token
            }
            let Some(num_cached) = self.take_blocks(slot) else {
                break;
            };
            let ticket = self.table.get(slot).ticket(slot);
            self.order.remove(ticket);
            self.count_lookup(slot, num_cached);
            let row = self.open_row(slot, num_cached, plan, now);
            if !self.plan_chunk(row, plan) {
                self.prefilling.push(row);
            }
            if self.has_bug(SeededBug::FindableTooEarly) && self.config.prefix_caching {
                let planned = self.rows.get(row).planned;
                self.register_full(row, planned);
            }
        }
    }

    /// Takes blocks for the whole sequence of a waiting request, cached ones first; `None` and nothing changed when
    /// they are not there. Returns the number of cached tokens.
    fn take_blocks(&mut self, slot: Slot) -> Option<u32> {
        let cold = self.table.get_mut(slot);
        let len = cold.tokens.len() as u32;
        let block_size = self.config.block_size;
        self.hits.clear();
        // The last token must be run to sample from it, so a fully cached prompt gives up its last block.
        let namespace = Namespace(cold.request.namespace);
        let node = self.pool.lookup(namespace, &cold.tokens, (len - 1) / block_size, &mut self.hits);
        let num_new = len.div_ceil(block_size) - self.hits.len() as u32;
        if self.rows.in_use() > 0 {
            let revived = self.hits.iter().filter(|&&block| self.pool.ref_count(block) == 0).count() as u32;
            if self.pool.num_free() < num_new + revived + self.config.watermark_blocks {
                return None;
            }
        }
        self.pool.take(&self.hits, num_new, &mut cold.blocks).ok()?;
        cold.registered = self.hits.len() as u32;
        cold.node = node;
        Some(cold.registered * block_size)
    }

    fn count_lookup(&mut self, slot: Slot, num_cached: u32) {
        let Stats { prefix_queries, prefix_hits, recovered_tokens, .. } = &mut self.stats;
        let cold = self.table.get_mut(slot);
        if cold.timing.preemptions > 0 {
            *recovered_tokens += u64::from(num_cached);
        } else {
            *prefix_queries += cold.tokens.len() as u64;
            *prefix_hits += u64::from(num_cached);
            cold.timing.num_cached_tokens = num_cached;
        }
    }

    pub(super) fn row_available(&self) -> bool {
        self.rows.in_use() < self.config.max_num_seqs && self.rows.any_free()
    }

    /// Gives a request that holds its blocks a row, with `planned` positions computed.
    fn open_row(&mut self, slot: Slot, planned: u32, plan: &mut StepPlan, now: Time) -> Row {
        let block_size = self.config.block_size;
        let cold = self.table.get_mut(slot);
        let request = &cold.request;
        let stops = !request.stop_token_ids.is_empty() || (self.config.eos_token_id.is_some() && !request.ignore_eos);
        let known = cold.tokens.len() as u32;
        let mut hot = Hot {
            id: request.id,
            newest: plan.id,
            planned,
            known,
            pending: cold.pending,
            limit: request.max_total().min(self.config.max_model_len.unwrap_or(u32::MAX)),
            last_token: cold.tokens[known as usize - 1],
            next_full: (cold.registered + 1) * block_size,
            flags: FIRST | if stops { STOPS } else { 0 },
            slot,
            ..Hot::default()
        };
        if cold.hand_off {
            hot.flags |= HAND_OFF;
            hot.limit = hot.limit.min(known + 1);
            if planned > 0 {
                self.cached.push((hot.id, planned));
            }
        }
        if !self.config.prefix_caching {
            hot.next_full = u32::MAX;
        }
        let last = cold.blocks.len() - 1;
        hot.open_block(last as u32, cold.blocks[last], block_size);
        cold.timing.scheduled.get_or_insert(now);
        let row = self.rows.open(hot);
        let writes = cold.blocks.iter().enumerate();
        plan.table_diff.extend(writes.map(|(column, &block)| TableWrite { row, column: column as u32, block }));
        plan.opened.push(row);
        cold.phase = Phase::Running(row);
        row
    }

    fn launch(&mut self, mut plan: StepPlan) -> Option<StepId> {
        if plan.entries.is_empty() {
            debug_assert!(plan.table_diff.is_empty(), "only entries change the table");
            self.flight.recycle(plan);
            return None;
        }
        plan.closed.append(&mut self.closed);
        plan.preempted.append(&mut self.preempted);
        self.stats.steps += 1;
        self.stats.planned_tokens += u64::from(plan.num_tokens);
        let id = plan.id;
        self.flight.launch(plan);
        Some(id)
    }
}
