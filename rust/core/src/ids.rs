//! Identifiers. Each is a newtype, so that a row can never be passed where a block is meant.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A request, by the number its caller chose.
    RequestId(u64)
}
id! {
    /// One forward pass on one worker, numbered from 1 in the order of planning.
    StepId(u64)
}
id! {
    /// A persistent row of the runner's tables, stable until the newest step that names it is done.
    Row(u32)
}
id! {
    /// A worker: one model replica behind one `Worker` state machine. Survives restarts; see [`Incarnation`].
    WorkerId(u32)
}
id! {
    /// One life of a worker's process. A restarted worker has a new one, so its past cannot speak for it.
    Incarnation(u64)
}
id! {
    /// One life of the cluster.
    Epoch(u64)
}
id! {
    /// One KV transfer into one reservation, issued by the destination; unique within its incarnation.
    TransferId(u64)
}

/// One try at serving a request. A request that is placed again after a loss gets the next number, and whatever
/// still arrives under an older one is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    /// The request.
    pub request: RequestId,
    /// 1 for the first try.
    pub number: u32,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.request, self.number)
    }
}

/// A worker in one of its lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Peer {
    /// Which worker.
    pub worker: WorkerId,
    /// Which of its lives.
    pub incarnation: Incarnation,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}#{}", self.worker, self.incarnation)
    }
}
