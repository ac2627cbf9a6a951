//! Blocks whose request has let go of them while a step or a copy may still touch them.
//!
//! They are owned here (so they count as used, and may be found and shared by their content) until the newest step
//! that names them is done and every pin on them is lifted.

use super::table::PinId;
use crate::ids::StepId;
use crate::kv::{BlockId, BlockPool};
use smallvec::SmallVec;

#[derive(Debug)]
struct Fence {
    step: StepId,
    pins: SmallVec<[PinId; 1]>,
    blocks: Vec<BlockId>,
}

#[derive(Debug, Default)]
pub(super) struct Fences {
    fences: Vec<Fence>,
    /// Blocks that are never handed out again.
    retired: Vec<BlockId>,
}

impl Fences {
    /// Takes over the blocks; frees them at once when nothing can touch them any more.
    pub fn push(
        &mut self,
        blocks: Vec<BlockId>,
        step: StepId,
        pins: SmallVec<[PinId; 1]>,
        completed: StepId,
        pool: &mut BlockPool,
    ) {
        if blocks.is_empty() {
            return;
        }
        let fence = Fence { step, pins, blocks };
        if fence.passed(completed) { pool.release_all(&fence.blocks) } else { self.fences.push(fence) }
    }

    /// Steps up to `completed` are done.
    pub fn lift_steps(&mut self, completed: StepId, pool: &mut BlockPool) {
        if !self.fences.is_empty() {
            self.sweep(completed, pool);
        }
    }

    /// The copy behind `pin` is over.
    pub fn lift_pin(&mut self, pin: PinId, completed: StepId, pool: &mut BlockPool) -> bool {
        let Some(fence) = self.fences.iter_mut().find(|fence| fence.pins.contains(&pin)) else {
            return false;
        };
        fence.pins.retain(|&mut p| p != pin);
        self.sweep(completed, pool);
        true
    }

    fn sweep(&mut self, completed: StepId, pool: &mut BlockPool) {
        self.fences.retain(|fence| {
            let passed = fence.passed(completed);
            if passed {
                pool.release_all(&fence.blocks);
            }
            !passed
        });
    }

    /// The copy behind `pin` will never be proven over. Returns how many blocks are lost by it.
    pub fn retire(&mut self, pin: PinId) -> u32 {
        let Some(at) = self.fences.iter().position(|fence| fence.pins.contains(&pin)) else { return 0 };
        let blocks = self.fences.swap_remove(at).blocks;
        self.retired.extend_from_slice(&blocks);
        blocks.len() as u32
    }

    /// Blocks lost for good.
    pub fn num_retired(&self) -> u32 {
        self.retired.len() as u32
    }

    /// Blocks that will be free as soon as the steps in flight are done.
    pub fn credit(&self, pool: &BlockPool) -> u32 {
        let fences = self.fences.iter().filter(|fence| fence.pins.is_empty());
        fences.flat_map(|fence| &fence.blocks).filter(|&&block| pool.ref_count(block) == 1).count() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.fences.is_empty()
    }

    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.fences.iter().flat_map(|fence| &fence.blocks).chain(&self.retired).copied()
    }
}

impl Fence {
    fn passed(&self, completed: StepId) -> bool {
        self.step <= completed && self.pins.is_empty()
    }
}
