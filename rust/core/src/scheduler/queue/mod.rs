//! Queue orders: who is admitted next, and who gives way. One small file each; the scheduler knows only the trait.

mod fcfs;

pub use fcfs::Fcfs;

use crate::time::Time;

/// A request's place in the scheduler's own table.
pub(crate) type Slot = u32;

/// What an order may know of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Which request.
    pub(crate) slot: Slot,
    /// Position in the order of arrival, kept through preemptions.
    pub arrival: u64,
    /// Tokens that would have to be computed (again) to run it.
    pub num_tokens: u32,
}

/// An order of waiting requests. Touched on arrival, preemption, admission and end only, never per token.
pub trait QueueOrder: Send + Sync {
    /// A request arrives, or comes back preempted with the arrival it had.
    fn push(&mut self, ticket: Ticket);

    /// The one to be admitted next.
    fn peek(&mut self, now: Time) -> Option<Slot>;

    /// Takes a request out, wherever it stands.
    fn remove(&mut self, ticket: Ticket) -> bool;

    /// Number of requests waiting.
    fn len(&self) -> usize;

    /// Nobody waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which of the candidates gives its blocks back first.
    fn victim(&self, candidates: &[Ticket]) -> Option<Ticket>;

    /// All waiting requests, for integrity checks.
    fn slots(&self) -> Vec<Slot>;
}
