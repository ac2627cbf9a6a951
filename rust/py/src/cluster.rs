//! `Cluster`, its configuration and its actions.

use crate::error::Error;
use crate::log::Log;
use crate::request::Request;
use crate::worker::{PyPeer, Send, from_peer, to_peer};
use numpy::PyArray1;
use pdsched_core::cluster::{self, ClusterAction, ClusterEvent};
use pdsched_core::message::{Envelope, Party};
use pdsched_core::record::ClusterCall;
use pdsched_core::{Epoch, RequestId};
use pyo3::exceptions::{PyAssertionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::VecDeque;

#[pyclass(frozen, eq, module = "pdsched", from_py_object)]
#[derive(Clone, PartialEq)]
pub struct ClusterConfig(cluster::ClusterConfig);

#[pymethods]
impl ClusterConfig {
    /// Keywords are fields of the core's configuration; those not given keep their defaults.
    #[new]
    #[pyo3(signature = (epoch, *, lease_ns = None, heartbeat_ns = None, worker_silence_ns = None, lost_after_ns = None,
        cluster_silence_ns = None, queue_timeout_ns = None, max_attempts = None, max_queue = None,
        expected_output_tokens = None, retry_after_refusal_ns = None))]
    #[allow(clippy::too_many_arguments)] // one keyword per field
    fn new(
        epoch: u64,
        lease_ns: Option<u64>,
        heartbeat_ns: Option<u64>,
        worker_silence_ns: Option<u64>,
        lost_after_ns: Option<u64>,
        cluster_silence_ns: Option<u64>,
        queue_timeout_ns: Option<u64>,
        max_attempts: Option<u32>,
        max_queue: Option<u32>,
        expected_output_tokens: Option<u32>,
        retry_after_refusal_ns: Option<u64>,
    ) -> PyResult<Self> {
        let default = cluster::ClusterConfig::new(Epoch(epoch));
        let config = cluster::ClusterConfig {
            epoch: Epoch(epoch),
            lease_ns: lease_ns.unwrap_or(default.lease_ns),
            heartbeat_ns: heartbeat_ns.unwrap_or(default.heartbeat_ns),
            worker_silence_ns: worker_silence_ns.unwrap_or(default.worker_silence_ns),
            lost_after_ns: lost_after_ns.unwrap_or(default.lost_after_ns),
            cluster_silence_ns: cluster_silence_ns.unwrap_or(default.cluster_silence_ns),
            queue_timeout_ns: queue_timeout_ns.unwrap_or(default.queue_timeout_ns),
            max_attempts: max_attempts.unwrap_or(default.max_attempts),
            max_queue: max_queue.unwrap_or(default.max_queue),
            expected_output_tokens: expected_output_tokens.unwrap_or(default.expected_output_tokens),
            retry_after_refusal_ns: retry_after_refusal_ns.unwrap_or(default.retry_after_refusal_ns),
        };
        config.validate().map_err(Error::from)?;
        Ok(Self(config))
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch.0
    }

    #[getter]
    fn lease_ns(&self) -> u64 {
        self.0.lease_ns
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Emit {
    request: u64,
    index: u32,
    token_ids: Py<PyArray1<i64>>,
    extras: Vec<Py<PyBytes>>,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Finish {
    request: u64,
    reason: &'static str,
    detail: Option<String>,
    timing: Vec<(&'static str, u64)>,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Entered {
    request: u64,
    attempt: u32,
    phase: &'static str,
    prefill: Option<u32>,
    decode: Option<u32>,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct WorkerUp {
    peer: PyPeer,
    role: &'static str,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct WorkerDown {
    peer: PyPeer,
    reason: &'static str,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct WorkerRefused {
    peer: PyPeer,
    reason: String,
}

#[pyclass(module = "pdsched")]
pub struct Cluster {
    core: cluster::Cluster,
    log: Log,
    actions: VecDeque<ClusterAction>,
}

impl Cluster {
    fn event(&mut self, event: ClusterEvent, now: u64) -> PyResult<()> {
        if self.log.is_on() {
            self.log.call(&ClusterCall::Handle(event.clone(), now));
        }
        let result = self.core.handle(event, now);
        if let Err(error) = &result {
            self.log.output(&error.to_string());
        }
        self.collect();
        Ok(result.map_err(Error::from)?)
    }

    /// What the last call brought joins the queue (and the log).
    fn collect(&mut self) {
        while let Some(action) = self.core.poll_action() {
            self.log.output(&action);
            self.actions.push_back(action);
        }
    }
}

#[pymethods]
impl Cluster {
    #[new]
    #[pyo3(signature = (config, *, record = false))]
    fn new(config: &ClusterConfig, record: bool) -> PyResult<Self> {
        let log = Log::new(record, &config.0);
        let core = cluster::Cluster::new(config.0.clone()).map_err(Error::from)?;
        Ok(Self { core, log, actions: VecDeque::new() })
    }

    fn submit(&mut self, request: &Request, now: u64) -> PyResult<()> {
        self.event(ClusterEvent::Submit(request.0.clone()), now)
    }

    fn abort(&mut self, id: u64, now: u64) -> PyResult<()> {
        self.event(ClusterEvent::Abort(RequestId(id)), now)
    }

    fn handle(&mut self, message: &[u8], now: u64) -> PyResult<()> {
        let envelope = Envelope::decode(message).map_err(Error::from)?;
        self.event(ClusterEvent::Message(envelope), now)
    }

    fn worker_dead(&mut self, worker: u32, incarnation: u64, now: u64) -> PyResult<()> {
        self.event(ClusterEvent::WorkerDead(to_peer((worker, incarnation))), now)
    }

    fn handle_timeout(&mut self, now: u64) {
        self.log.call(&ClusterCall::HandleTimeout(now));
        self.core.handle_timeout(now);
        self.collect();
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }

    fn poll_action(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.actions.pop_front().map(|action| action_object(py, action)).transpose()
    }

    fn loads<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.core.loads().iter().map(|load| crate::balancer::load(py, load)).collect()
    }

    #[getter]
    fn num_requests(&self) -> usize {
        self.core.num_requests()
    }

    #[getter]
    fn num_waiting(&self) -> usize {
        self.core.num_waiting()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // Counters by name, as serde sees them: one list of them, in the core.
        let text =
            serde_json::to_string(&self.core.stats()).map_err(|error| PyValueError::new_err(error.to_string()))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    fn take_log<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.log.take())
    }

    fn check(&self) -> PyResult<()> {
        self.core.check().map_err(PyAssertionError::new_err)
    }
}

fn action_object(py: Python<'_>, action: ClusterAction) -> PyResult<Py<PyAny>> {
    Ok(match action {
        ClusterAction::Send { to, message } => Py::new(py, Send::new(py, Party::Worker(to), &message))?.into_any(),
        ClusterAction::Emit { request, index, token_ids, extras } => {
            let token_ids = PyArray1::from_iter(py, token_ids.iter().map(|&token| i64::from(token))).unbind();
            let extras = extras.iter().map(|extra| PyBytes::new(py, extra).unbind()).collect();
            Py::new(py, Emit { request: request.0, index, token_ids, extras })?.into_any()
        }
        ClusterAction::Finish { request, reason, detail, timing } => {
            let timing = timing.entered.iter().map(|&(phase, time)| (phase.as_str(), time)).collect();
            Py::new(py, Finish { request: request.0, reason: reason.as_str(), detail, timing })?.into_any()
        }
        ClusterAction::Entered { attempt, phase, prefill, decode } => {
            let (prefill, decode) = (prefill.map(|worker| worker.0), decode.map(|worker| worker.0));
            let (request, attempt) = (attempt.request.0, attempt.number);
            Py::new(py, Entered { request, attempt, phase: phase.as_str(), prefill, decode })?.into_any()
        }
        ClusterAction::WorkerUp { peer, role } => {
            Py::new(py, WorkerUp { peer: from_peer(peer), role: role.as_str() })?.into_any()
        }
        ClusterAction::WorkerDown { peer, reason } => {
            Py::new(py, WorkerDown { peer: from_peer(peer), reason: reason.as_str() })?.into_any()
        }
        ClusterAction::WorkerRefused { peer, reason } => {
            Py::new(py, WorkerRefused { peer: from_peer(peer), reason })?.into_any()
        }
    })
}
