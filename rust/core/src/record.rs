//! Logs of everything a machine was told and answered, and their replay.
//!
//! A log is a sequence of msgpack values `(kind, payload)`: first the configuration, then every call with its time,
//! each followed by what came of it. Feeding the calls to a fresh machine must give the same outputs, byte for byte.
//! A log that was cut off (its writer was killed) replays up to the cut.

use crate::cluster::{Cluster, ClusterConfig, ClusterEvent};
use crate::ids::StepId;
use crate::time::Time;
use crate::worker::{Worker, WorkerConfig, WorkerEvent};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::collections::VecDeque;
use thiserror::Error;

/// A log being written. The owner takes the bytes out whenever it likes and stores them in order.
#[derive(Debug, Default)]
pub struct Recorder {
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Config,
    Call,
    Output,
}

impl Recorder {
    fn push(&mut self, kind: Kind, payload: &impl Serialize) {
        let payload = rmp_serde::to_vec(payload).expect("a value of ours can be encoded");
        let record = (kind as u8, ByteBuf::from(payload));
        rmp_serde::encode::write(&mut self.bytes, &record).expect("writing to a vector cannot fail");
    }

    /// The machine's configuration; first.
    pub fn config(&mut self, config: &impl Serialize) {
        self.push(Kind::Config, config);
    }

    /// The machine is told something.
    pub fn call(&mut self, call: &impl Serialize) {
        self.push(Kind::Call, call);
    }

    /// It answers.
    pub fn output(&mut self, output: &impl Serialize) {
        self.push(Kind::Output, output);
    }

    /// What was written since the last time.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// A machine that can be replayed.
pub trait Machine: Sized {
    /// Its configuration.
    type Config: DeserializeOwned;
    /// Everything it can be told.
    type Call: DeserializeOwned;

    /// A fresh one.
    fn create(config: Self::Config) -> Result<Self, String>;

    /// Tells it something; what comes of it is encoded into the recorder.
    fn apply(&mut self, call: Self::Call, outputs: &mut Recorder);
}

/// Everything a [`Worker`] can be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, clippy::large_enum_variant)] // the worker's methods of the same names; short-lived
pub enum WorkerCall {
    Handle(WorkerEvent, Time),
    HandleTimeout(Time),
    Schedule(Time),
    Complete(StepId, Vec<i64>, Time),
    Fail(StepId, Time),
}

impl Machine for Worker {
    type Config = WorkerConfig;
    type Call = WorkerCall;

    fn create(config: WorkerConfig) -> Result<Self, String> {
        Self::new(config).map_err(|error| error.to_string())
    }

    fn apply(&mut self, call: WorkerCall, outputs: &mut Recorder) {
        let result = match call {
            WorkerCall::Handle(event, now) => {
                self.handle(event, now);
                Ok(())
            }
            WorkerCall::HandleTimeout(now) => {
                self.handle_timeout(now);
                Ok(())
            }
            WorkerCall::Schedule(now) => {
                let step = self.schedule(now);
                outputs.output(&step.and_then(|step| self.scheduler().step(step)));
                Ok(())
            }
            WorkerCall::Complete(step, tokens, now) => self.complete(step, &tokens, now),
            WorkerCall::Fail(step, now) => self.fail(step, now),
        };
        if let Err(error) = result {
            outputs.output(&error.to_string());
        }
        while let Some(action) = self.poll_action() {
            outputs.output(&action);
        }
    }
}

/// Everything a [`Cluster`] can be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, clippy::large_enum_variant)] // the cluster's methods of the same names; short-lived
pub enum ClusterCall {
    Handle(ClusterEvent, Time),
    HandleTimeout(Time),
}

impl Machine for Cluster {
    type Config = ClusterConfig;
    type Call = ClusterCall;

    fn create(config: ClusterConfig) -> Result<Self, String> {
        Self::new(config).map_err(|error| error.to_string())
    }

    fn apply(&mut self, call: ClusterCall, outputs: &mut Recorder) {
        match call {
            ClusterCall::Handle(event, now) => {
                if let Err(error) = self.handle(event, now) {
                    outputs.output(&error.to_string());
                }
            }
            ClusterCall::HandleTimeout(now) => self.handle_timeout(now),
        }
        while let Some(action) = self.poll_action() {
            outputs.output(&action);
        }
    }
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Calls replayed.
    pub calls: u64,
    /// Outputs compared.
    pub outputs: u64,
    /// The first output that came out otherwise: its number and what differs.
    pub difference: Option<String>,
    /// The log ends in the middle of a record, as that of a killed process may.
    pub truncated: bool,
}

/// A log that cannot be replayed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // the texts say it
pub enum ReplayError {
    #[error("the log is empty")]
    Empty,
    #[error("the log does not begin with a configuration this version reads: {0}")]
    Config(String),
    #[error("call {number}: {text}")]
    Call { number: u64, text: String },
}

/// Feeds a recorded log to a fresh machine and compares every output.
pub fn replay<M: Machine>(log: &[u8]) -> Result<Replay, ReplayError> {
    let mut reader = Reader { rest: log, truncated: false };
    let first = reader.next();
    let (kind, payload) = first.ok_or_else(|| match log {
        [] => ReplayError::Empty,
        _ => ReplayError::Config("it does not begin with a record".into()),
    })?;
    let config = if kind == Kind::Config as u8 {
        rmp_serde::from_slice(&payload).map_err(|e| e.to_string())
    } else {
        Err("no configuration".into())
    };
    let mut machine = config.and_then(M::create).map_err(ReplayError::Config)?;
    let mut replay = Replay { calls: 0, outputs: 0, difference: None, truncated: false };
    let mut expected: VecDeque<Vec<u8>> = VecDeque::new();
    for (kind, payload) in reader.by_ref() {
        if kind == Kind::Output as u8 {
            replay.outputs += 1;
            match expected.pop_front() {
                Some(output) if output == payload => {}
                other => {
                    replay.difference = Some(difference(&replay, &payload, other.as_deref()));
                    break;
                }
            }
            continue;
        }
        if let Some(extra) = expected.pop_front() {
            replay.difference = Some(difference(&replay, &[], Some(&extra)));
            break;
        }
        replay.calls += 1;
        let number = replay.calls;
        let call = rmp_serde::from_slice(&payload).map_err(|e| ReplayError::Call { number, text: e.to_string() })?;
        let mut outputs = Recorder::default();
        machine.apply(call, &mut outputs);
        expected = Reader { rest: &outputs.take(), truncated: false }.map(|(_, payload)| payload).collect();
    }
    replay.truncated = reader.truncated;
    if let (Some(extra), None, false) = (expected.pop_front(), &replay.difference, replay.truncated) {
        replay.difference = Some(difference(&replay, &[], Some(&extra)));
    }
    Ok(replay)
}

fn difference(replay: &Replay, recorded: &[u8], replayed: Option<&[u8]>) -> String {
    let text = |bytes: Option<&[u8]>| match bytes {
        None | Some([]) => "nothing".to_owned(),
        Some(bytes) => format!("{} bytes {:02x?}", bytes.len(), &bytes[..bytes.len().min(48)]),
    };
    let Replay { calls, outputs, .. } = replay;
    format!("after call {calls}, output {outputs}: recorded {}, replayed {}", text(Some(recorded)), text(replayed))
}

struct Reader<'a> {
    rest: &'a [u8],
    truncated: bool,
}

impl Iterator for Reader<'_> {
    type Item = (u8, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let mut input = self.rest;
        match rmp_serde::from_read::<_, (u8, ByteBuf)>(&mut input) {
            Ok((kind, payload)) => {
                self.rest = input;
                Some((kind, payload.into_vec()))
            }
            Err(_) => {
                self.truncated = true;
                None
            }
        }
    }
}
