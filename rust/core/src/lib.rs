//! The core of pdsched: three sans-I/O state machines that schedule LLM inference.
//!
//! [`Scheduler`] decides which tokens one worker computes next and in which blocks of its [`BlockPool`].
//! A [`Worker`] turns messages into scheduler calls and owns KV transfers, leases and fences.
//! A [`Cluster`] decides who runs where. Events come in with their time, actions come out; nothing here reads a clock,
//! does I/O, starts a thread or draws an unseeded random number, so the same calls give the same result bit for bit.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod balance;
pub mod cluster;
pub mod ids;
pub mod kv;
pub mod message;
pub mod record;
pub mod request;
pub mod scheduler;
pub mod time;
pub mod worker;

pub use balance::LoadBalancer;
pub use cluster::{Cluster, ClusterConfig};
pub use ids::{Attempt, Epoch, Incarnation, Peer, RequestId, Row, StepId, TransferId, WorkerId};
pub use kv::{BlockId, BlockPool};
pub use request::{FinishReason, Request};
pub use scheduler::{Goal, Scheduler, SchedulerConfig};
pub use time::{Nanos, Time};
pub use worker::Worker;
