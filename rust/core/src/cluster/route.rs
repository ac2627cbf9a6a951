//! Which workers a request goes to: a pure function of the loads and the registry.

use super::registry::Registry;
use crate::balance::{LoadBalancer, WorkerLoad};
use crate::ids::WorkerId;

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The two phases on different workers.
    Split { prefill: WorkerId, decode: WorkerId },
    /// Both on one.
    Both(WorkerId),
}

/// The workers for a request of `tokens` that is expected to grow by `expected`, or `None` when it has to wait.
///
/// A prefill and a decode worker when there are both, else one that does both. Only workers with room for the
/// request as it is are asked: what is beyond that waits here, where any worker can still take it, and no prompt is
/// computed for which there is no place. Expected growth orders the candidates and excludes none.
pub(super) fn route(balancer: &LoadBalancer, registry: &Registry, tokens: u64, expected: u64) -> Option<Route> {
    let has_room = |load: &WorkerLoad| load.room() > tokens && registry.may_take(load.worker, tokens);
    let decode = balancer.choose_decode_if(tokens, expected, has_room);
    let prefill = balancer.choose_prefill_if(tokens, |load| registry.may_take(load.worker, tokens));
    match (prefill, decode) {
        (Some(prefill), Some(decode)) => Some(Route::Split { prefill, decode }),
        _ => balancer.choose_both_if(tokens, expected, has_room).map(Route::Both),
    }
}
