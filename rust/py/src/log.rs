//! Recording and replay.

use crate::error::Error;
use pdsched_core::record::{self, Machine, Recorder};
use pyo3::prelude::*;
use serde::Serialize;

/// A recorder that may be off.
#[derive(Default)]
pub struct Log(Option<Recorder>);

impl Log {
    pub fn new(on: bool, config: &impl Serialize) -> Self {
        Self(on.then(|| {
            let mut recorder = Recorder::default();
            recorder.config(config);
            recorder
        }))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub fn call(&mut self, call: &impl Serialize) {
        if let Some(recorder) = &mut self.0 {
            recorder.call(call);
        }
    }

    pub fn output(&mut self, output: &impl Serialize) {
        if let Some(recorder) = &mut self.0 {
            recorder.output(output);
        }
    }

    pub fn take(&mut self) -> Vec<u8> {
        self.0.as_mut().map(Recorder::take).unwrap_or_default()
    }
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Replay {
    calls: u64,
    outputs: u64,
    difference: Option<String>,
    truncated: bool,
}

pub fn replay<M: Machine>(py: Python<'_>, log: &[u8]) -> PyResult<Replay> {
    let record::Replay { calls, outputs, difference, truncated } =
        py.detach(|| record::replay::<M>(log)).map_err(Error::from)?;
    Ok(Replay { calls, outputs, difference, truncated })
}

/// Feeds a worker's log to a fresh worker and compares every output.
#[pyfunction]
pub fn replay_worker(py: Python<'_>, log: &[u8]) -> PyResult<Replay> {
    replay::<pdsched_core::Worker>(py, log)
}

/// Feeds a cluster's log to a fresh cluster and compares every output.
#[pyfunction]
pub fn replay_cluster(py: Python<'_>, log: &[u8]) -> PyResult<Replay> {
    replay::<pdsched_core::Cluster>(py, log)
}
