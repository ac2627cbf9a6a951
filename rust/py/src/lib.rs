//! `pdsched._core`: the core's machines as Python classes. Thin: nothing is decided here.
//!
//! | file | concern |
//! |---|---|
//! | `error` | the one mapping of Rust errors to Python exceptions |
//! | `ints` | integers that come in: arrays, buffers, lists |
//! | `config`, `request` | what machines are told |
//! | `step` | a step's arrays and who owns their memory |
//! | `scheduler`, `pool`, `balancer`, `worker`, `cluster` | one class each |
//! | `log` | recording and replay |

mod balancer;
mod cluster;
mod config;
mod error;
mod ints;
mod log;
mod pool;
mod request;
mod scheduler;
mod step;
mod worker;

use pyo3::prelude::*;

/// The compiled core of pdsched.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::balancer::LoadBalancer;
    #[pymodule_export]
    use super::cluster::{Cluster, ClusterConfig, Emit, Entered, Finish, WorkerDown, WorkerRefused, WorkerUp};
    #[pymodule_export]
    use super::config::SchedulerConfig;
    #[pymodule_export]
    use super::log::{Replay, replay_cluster, replay_worker};
    #[pymodule_export]
    use super::pool::BlockPool;
    #[pymodule_export]
    use super::request::{Finished, Request, Timing};
    #[pymodule_export]
    use super::scheduler::{Outputs, Scheduler};
    #[pymodule_export]
    use super::step::{Opened, Step, StepBuffers};
    #[pymodule_export]
    use super::worker::{
        CancelTransfer, Connect, Disconnect, Kill, PeerDead, Send, StartTransfer, TransferDone, Worker,
    };
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
