//! Prefill placement: the worker with the fewest prompt tokens still to compute, which is the one that will start on
//! this prompt first when all compute at the same speed.

use super::WorkerLoad;
use crate::ids::WorkerId;

/// The worker with the shortest queue in tokens. Ties go to the worker with the fewest placements, then to the
/// lowest id.
pub fn choose<'a>(candidates: impl Iterator<Item = &'a WorkerLoad>) -> Option<WorkerId> {
    candidates.min_by_key(|load| (load.queued_prefill, load.placements, load.worker)).map(|load| load.worker)
}
