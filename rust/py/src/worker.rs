//! `Worker`, the events it takes and the actions it gives.

use crate::config::SchedulerConfig;
use crate::error::Error;
use crate::log::Log;
use crate::scheduler::sampled;
use crate::step::{Source, Spare, Step};
use numpy::PyArray1;
use pdsched_core::message::{Envelope, Party, Role};
use pdsched_core::record::WorkerCall;
use pdsched_core::worker::{Run, WorkerAction, WorkerConfig, WorkerEvent};
use pdsched_core::{self as core, Incarnation, Peer, StepId, TransferId, WorkerId};
use pyo3::exceptions::{PyAssertionError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::VecDeque;

/// A worker in one of its lives, as Python writes it.
pub type PyPeer = (u32, u64);

pub fn to_peer((worker, incarnation): PyPeer) -> Peer {
    Peer { worker: WorkerId(worker), incarnation: Incarnation(incarnation) }
}

pub fn from_peer(peer: Peer) -> PyPeer {
    (peer.worker.0, peer.incarnation.0)
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct TransferDone {
    transfer: u64,
    peer: PyPeer,
    chunk: u32,
    ok: bool,
}

#[pymethods]
impl TransferDone {
    #[new]
    fn new(transfer: u64, peer: PyPeer, chunk: u32, ok: bool) -> Self {
        Self { transfer, peer, chunk, ok }
    }
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct PeerDead {
    worker: u32,
    incarnation: u64,
}

#[pymethods]
impl PeerDead {
    #[new]
    fn new(worker: u32, incarnation: u64) -> Self {
        Self { worker, incarnation }
    }
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Send {
    to: Option<PyPeer>,
    data: Py<PyBytes>,
}

impl Send {
    pub fn new(py: Python<'_>, to: Party, message: &Envelope) -> Self {
        let to = match to {
            Party::Cluster => None,
            Party::Worker(peer) => Some(from_peer(peer)),
        };
        Self { to, data: PyBytes::new(py, &message.encode()).unbind() }
    }
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct StartTransfer {
    transfer: u64,
    peer: PyPeer,
    chunk: u32,
    src_block: Py<PyArray1<i32>>,
    src_offset: Py<PyArray1<i32>>,
    dst_block: Py<PyArray1<i32>>,
    dst_offset: Py<PyArray1<i32>>,
    num_tokens: Py<PyArray1<i32>>,
}

impl StartTransfer {
    fn new(py: Python<'_>, peer: Peer, transfer: TransferId, chunk: u32, runs: &[Run]) -> Self {
        let column =
            |field: fn(&Run) -> u32| PyArray1::from_iter(py, runs.iter().map(|run| field(run) as i32)).unbind();
        Self {
            transfer: transfer.0,
            peer: from_peer(peer),
            chunk,
            src_block: column(|run| run.src_block.0),
            src_offset: column(|run| run.src_offset),
            dst_block: column(|run| run.dst_block.0),
            dst_offset: column(|run| run.dst_offset),
            num_tokens: column(|run| run.num_tokens),
        }
    }
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct CancelTransfer {
    transfer: u64,
    peer: PyPeer,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Connect {
    peer: PyPeer,
    address: Py<PyBytes>,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Disconnect {
    peer: PyPeer,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Kill {
    worker: u32,
    incarnation: u64,
}

#[pyclass(module = "pdsched")]
pub struct Worker {
    pub core: core::Worker,
    /// Calls that change something; a step's arrays are built before the next one.
    pub calls: u64,
    pub spare: Spare,
    log: Log,
    actions: VecDeque<WorkerAction>,
}

impl Worker {
    /// What the last call brought joins the queue (and the log).
    fn collect(&mut self) {
        while let Some(action) = self.core.poll_action() {
            self.log.output(&action);
            self.actions.push_back(action);
        }
    }

    fn finish(&mut self, result: Result<(), core::scheduler::CompleteError>) -> PyResult<()> {
        if let Err(error) = &result {
            self.log.output(&error.to_string());
        }
        self.collect();
        Ok(result.map_err(Error::from)?)
    }
}

#[pymethods]
impl Worker {
    #[new]
    #[pyo3(signature = (config, *, worker_id, incarnation, role, fingerprint = "", address = None, kill_after_ns = None, record = false))]
    #[allow(clippy::too_many_arguments)] // one keyword per field
    fn new(
        config: &SchedulerConfig,
        worker_id: u32,
        incarnation: u64,
        role: &str,
        fingerprint: &str,
        address: Option<&[u8]>,
        kill_after_ns: Option<u64>,
        record: bool,
    ) -> PyResult<Self> {
        let mut config = WorkerConfig::new(config.0.clone(), to_peer((worker_id, incarnation)), to_role(role)?);
        config.fingerprint = fingerprint.to_owned();
        config.address = address.unwrap_or_default().to_vec().into();
        config.kill_after_ns = kill_after_ns.unwrap_or(config.kill_after_ns);
        let log = Log::new(record, &config);
        let core = core::Worker::new(config).map_err(Error::from)?;
        Ok(Self { core, calls: 0, spare: Spare::default(), log, actions: VecDeque::new() })
    }

    fn handle(&mut self, event: &Bound<'_, PyAny>, now: u64) -> PyResult<()> {
        let event = to_event(event)?;
        self.calls += 1;
        if self.log.is_on() {
            self.log.call(&WorkerCall::Handle(event.clone(), now));
        }
        self.core.handle(event, now);
        self.collect();
        Ok(())
    }

    fn handle_timeout(&mut self, now: u64) {
        self.calls += 1;
        self.log.call(&WorkerCall::HandleTimeout(now));
        self.core.handle_timeout(now);
        self.collect();
    }

    fn poll_action(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.actions.pop_front().map(|action| action_object(py, action)).transpose()
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }

    fn schedule(slf: &Bound<'_, Self>, now: u64) -> PyResult<Option<Step>> {
        let mut this = slf.try_borrow_mut()?;
        this.calls += 1;
        this.log.call(&WorkerCall::Schedule(now));
        let step = this.core.schedule(now);
        let Self { core, log, calls, .. } = &mut *this;
        let plan = step.and_then(|step| core.scheduler().step(step));
        log.output(&plan);
        let step = plan.map(|plan| Step::new(Source::Worker(slf.clone().unbind()), *calls, plan));
        this.collect();
        Ok(step)
    }

    #[pyo3(signature = (step_id, tokens, counts = None, *, now))]
    fn complete(
        &mut self,
        step_id: u64,
        tokens: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
        now: u64,
    ) -> PyResult<()> {
        let tokens = sampled(tokens, counts)?;
        let tokens = tokens.as_slice()?;
        self.calls += 1;
        if self.log.is_on() {
            self.log.call(&WorkerCall::Complete(StepId(step_id), tokens.to_vec(), now));
        }
        let result = self.core.complete(StepId(step_id), tokens, now);
        self.finish(result)
    }

    fn fail(&mut self, step_id: u64, now: u64) -> PyResult<()> {
        self.calls += 1;
        self.log.call(&WorkerCall::Fail(StepId(step_id), now));
        let result = self.core.fail(StepId(step_id), now);
        self.finish(result)
    }

    fn take_log<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.log.take())
    }

    fn is_idle(&self) -> bool {
        self.core.is_idle()
    }

    fn check(&self) -> PyResult<()> {
        self.core.check().map_err(PyAssertionError::new_err)
    }

    #[getter]
    fn num_rows(&self) -> u32 {
        self.core.scheduler().config().num_rows()
    }

    #[getter]
    fn max_blocks_per_row(&self) -> u32 {
        self.core.scheduler().config().max_blocks_per_row()
    }

    #[getter]
    fn num_running(&self) -> u32 {
        self.core.scheduler().num_running()
    }

    #[getter]
    fn num_waiting(&self) -> usize {
        self.core.scheduler().num_waiting() + self.core.scheduler().num_ready()
    }

    #[getter]
    fn num_used_blocks(&self) -> u32 {
        self.core.scheduler().pool().num_used()
    }

    #[getter]
    fn num_free_blocks(&self) -> u32 {
        self.core.scheduler().pool().num_free()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = crate::scheduler::stats(py, self.core.scheduler().stats())?;
        let stats = self.core.stats();
        for (name, value) in [
            ("foreign_messages", stats.foreign_messages),
            ("stale_messages", stats.stale_messages),
            ("lost_messages", stats.lost_messages),
            ("unknown_subjects", stats.unknown_subjects),
            ("leases_expired", stats.leases_expired),
            ("hand_offs_in", stats.hand_offs_in),
            ("hand_offs_out", stats.hand_offs_out),
            ("retired_blocks", stats.retired_blocks),
            ("failed_steps", stats.failed_steps),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }
}

pub fn to_role(role: &str) -> PyResult<Role> {
    match role {
        "prefill" => Ok(Role::Prefill),
        "decode" => Ok(Role::Decode),
        "both" => Ok(Role::Both),
        _ => Err(PyValueError::new_err(format!("role = {role:?}: expected \"prefill\", \"decode\" or \"both\""))),
    }
}

fn to_event(event: &Bound<'_, PyAny>) -> PyResult<WorkerEvent> {
    if let Ok(bytes) = event.cast::<PyBytes>() {
        return Ok(WorkerEvent::Message(Envelope::decode(bytes.as_bytes()).map_err(Error::from)?));
    }
    if let Ok(done) = event.cast::<TransferDone>() {
        let TransferDone { transfer, peer, chunk, ok } = *done.get();
        return Ok(WorkerEvent::TransferDone { peer: to_peer(peer), transfer: TransferId(transfer), chunk, ok });
    }
    if let Ok(dead) = event.cast::<PeerDead>() {
        let PeerDead { worker, incarnation } = *dead.get();
        return Ok(WorkerEvent::Dead(to_peer((worker, incarnation))));
    }
    Err(PyTypeError::new_err(format!("event is {}: expected bytes, TransferDone or PeerDead", event.get_type())))
}

fn action_object(py: Python<'_>, action: WorkerAction) -> PyResult<Py<PyAny>> {
    Ok(match action {
        WorkerAction::Send { to, message } => Py::new(py, Send::new(py, to, &message))?.into_any(),
        WorkerAction::Connect { peer, address } => {
            let address = PyBytes::new(py, &address).unbind();
            Py::new(py, Connect { peer: from_peer(peer), address })?.into_any()
        }
        WorkerAction::Disconnect(peer) => Py::new(py, Disconnect { peer: from_peer(peer) })?.into_any(),
        WorkerAction::StartTransfer { peer, transfer, chunk, runs } => {
            Py::new(py, StartTransfer::new(py, peer, transfer, chunk, &runs))?.into_any()
        }
        WorkerAction::CancelTransfer { peer, transfer } => {
            Py::new(py, CancelTransfer { transfer: transfer.0, peer: from_peer(peer) })?.into_any()
        }
        WorkerAction::Kill(peer) => {
            let (worker, incarnation) = from_peer(peer);
            Py::new(py, Kill { worker, incarnation })?.into_any()
        }
    })
}
