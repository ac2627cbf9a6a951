//! A request in the cluster's books, and the states it can be in. What leads from one to another is in `lifecycle`.

use super::queue::Order;
use super::{ClusterAction, Phase, RequestView, Timing};
use crate::ids::{Attempt, Peer};
use crate::request::Request;
use crate::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;

/// Where a request is, with what only that state has. A finished request has no state: it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Queued { resuming: bool },
    Reserving { prefill: Peer, decode: Peer, until: Time },
    Prefilling { prefill: Peer, decode: Peer },
    HandedOff { prefill: Peer, decode: Peer },
    Decoding { decode: Peer },
    Running { worker: Peer },
}

impl State {
    pub fn phase(self) -> Phase {
        match self {
            Self::Queued { resuming: false } => Phase::Queued,
            Self::Queued { resuming: true } => Phase::Resuming,
            Self::Reserving { .. } => Phase::Reserving,
            Self::Prefilling { .. } => Phase::Prefilling,
            Self::HandedOff { .. } => Phase::HandedOff,
            Self::Decoding { .. } => Phase::Decoding,
            Self::Running { .. } => Phase::Running,
        }
    }

    /// The workers it names, as (prefill, decode). The same one twice when it does both.
    pub fn workers(self) -> (Option<Peer>, Option<Peer>) {
        match self {
            Self::Queued { .. } => (None, None),
            Self::Reserving { prefill, decode, .. }
            | Self::Prefilling { prefill, decode }
            | Self::HandedOff { prefill, decode } => (Some(prefill), Some(decode)),
            Self::Decoding { decode } => (None, Some(decode)),
            Self::Running { worker } => (Some(worker), Some(worker)),
        }
    }

    pub fn names(self, peer: Peer) -> bool {
        let (prefill, decode) = self.workers();
        prefill == Some(peer) || decode == Some(peer)
    }

    /// Whether outputs may come from this worker.
    pub fn generates_on(self, peer: Peer) -> bool {
        !matches!(self, Self::Reserving { .. }) && self.names(peer)
    }

    /// The workers that have heard of the try.
    pub fn told(self) -> impl Iterator<Item = Peer> {
        let (prefill, decode) = self.workers();
        let prefill = prefill.filter(|_| matches!(self, Self::Prefilling { .. } | Self::HandedOff { .. }));
        [decode, prefill].into_iter().flatten()
    }
}

/// A request that has not finished.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub order: Order,
    /// As it would be handed to a worker now: outputs of earlier tries are part of its tokens.
    pub request: Request,
    /// Outputs of the present try.
    pub outputs: Vec<u32>,
    pub state: State,
    /// Number of its newest try.
    pub number: u32,
    pub failures: u32,
    /// How long it may wait for a place; set when it is handed in and after each loss, not after a refusal.
    pub wait_until: Time,
    pub timing: Timing,
}

impl Entry {
    /// A request that has just been handed in, not placed yet.
    pub fn new(request: Request, order: Order, number: u32, wait_until: Time) -> Self {
        Self {
            order,
            request,
            outputs: Vec::new(),
            state: State::Queued { resuming: false },
            number,
            failures: 0,
            wait_until,
            timing: Timing::default(),
        }
    }

    /// Changes the state, and says so. Only `lifecycle` calls it.
    pub fn enter(&mut self, state: State, actions: &mut VecDeque<ClusterAction>, now: Time) {
        self.state = state;
        let RequestView { attempt, phase, prefill, decode, .. } = self.view();
        self.timing.enter(phase, now);
        actions.push_back(ClusterAction::Entered { attempt, phase, prefill, decode });
    }

    pub fn attempt(&self) -> Attempt {
        Attempt { request: self.request.id, number: self.number }
    }

    /// Index of the output that comes next.
    pub fn next_index(&self) -> u32 {
        self.request.num_known_outputs() + self.outputs.len() as u32
    }

    /// Prompt and outputs.
    pub fn num_tokens(&self) -> u64 {
        (self.request.token_ids.len() + self.outputs.len()) as u64
    }

    pub fn view(&self) -> RequestView {
        let (prefill, decode) = self.state.workers();
        RequestView {
            attempt: self.attempt(),
            phase: self.state.phase(),
            prefill: prefill.map(|peer| peer.worker),
            decode: decode.map(|peer| peer.worker),
            prompt_tokens: self.request.prompt_len,
            outputs: self.next_index(),
            failures: self.failures,
        }
    }

    /// The outputs of this try become known to the next one.
    pub fn fold_outputs(&mut self) {
        if !self.outputs.is_empty() {
            let tokens: Arc<[u32]> = self.request.token_ids.iter().chain(&self.outputs).copied().collect();
            self.request.token_ids = tokens;
            self.outputs.clear();
        }
    }
}
