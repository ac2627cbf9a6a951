//! Time is an argument: nanoseconds of any monotonic clock, and durations in nanoseconds. Nothing here reads a clock.

/// A moment: nanoseconds of the host's monotonic clock. Never compared across hosts.
pub type Time = u64;

/// A duration in nanoseconds. What travels between hosts is always a duration.
pub type Nanos = u64;

/// One second.
pub const SECOND: Nanos = 1_000_000_000;
/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// The earlier of two optional deadlines; `None` means "only an event can help".
pub fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
