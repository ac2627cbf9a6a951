//! `Scheduler` and `Outputs`.

use crate::config::SchedulerConfig;
use crate::error::Error;
use crate::ints;
use crate::request::{Finished, Request};
use crate::step::{Source, Spare, Step};
use numpy::{PyArray1, PyReadonlyArray1};
use pdsched_core::message::TokenRange;
use pdsched_core::scheduler::{self as sched, Arrival};
use pdsched_core::{self as core, RequestId, StepId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyclass(module = "pdsched")]
pub struct Scheduler {
    pub core: core::Scheduler,
    /// Calls that change something; a step's arrays are built before the next one.
    pub calls: u64,
    pub spare: Spare,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Outputs {
    request_ids: Py<PyArray1<u64>>,
    token_ids: Py<PyArray1<i64>>,
    finished: Vec<Finished>,
    progress: Vec<(u64, u32)>,
    held: Vec<u64>,
}

impl Outputs {
    fn new(py: Python<'_>, outputs: sched::Outputs) -> Self {
        Self {
            request_ids: PyArray1::from_vec(py, outputs.request_ids).unbind(),
            token_ids: PyArray1::from_vec(py, outputs.token_ids).unbind(),
            finished: outputs.finished.into_iter().map(Finished::from).collect(),
            progress: outputs.progress.into_iter().map(|(id, computed)| (id.0, computed)).collect(),
            held: outputs.held.into_iter().map(|id| id.0).collect(),
        }
    }
}

/// One token per sampling entry; `counts` exists for ragged outputs and must agree.
pub fn sampled<'py>(
    tokens: &Bound<'py, PyAny>,
    counts: Option<&Bound<'py, PyAny>>,
) -> PyResult<PyReadonlyArray1<'py, i64>> {
    let tokens = ints::int64_array("tokens", tokens)?;
    if let Some(counts) = counts {
        let counts = ints::int64_array("counts", counts)?;
        if let Some(&count) = counts.as_array().iter().find(|&&count| count != 1) {
            return Err(PyValueError::new_err(format!(
                "counts has a {count}: without drafts every request samples one token"
            )));
        }
    }
    Ok(tokens)
}

#[pymethods]
impl Scheduler {
    #[new]
    fn new(config: &SchedulerConfig) -> PyResult<Self> {
        let core = core::Scheduler::new(config.0.clone()).map_err(Error::from)?;
        Ok(Self { core, calls: 0, spare: Spare::default() })
    }

    #[pyo3(signature = (request, now, *, hand_off = false))]
    fn add(&mut self, request: &Request, now: u64, hand_off: bool) -> PyResult<()> {
        self.calls += 1;
        let goal = if hand_off { core::Goal::HandOff } else { core::Goal::Finish };
        Ok(self.core.add(request.0.clone(), goal, now).map_err(Error::from)?)
    }

    fn abort(&mut self, id: u64, now: u64) -> bool {
        self.calls += 1;
        self.core.abort(RequestId(id), now)
    }

    fn schedule(slf: &Bound<'_, Self>, now: u64) -> PyResult<Option<Step>> {
        let mut this = slf.try_borrow_mut()?;
        this.calls += 1;
        let Some(step) = this.core.schedule(now) else {
            return Ok(None);
        };
        let plan = this.core.step(step).expect("just planned");
        Ok(Some(Step::new(Source::Scheduler(slf.clone().unbind()), this.calls, plan)))
    }

    #[pyo3(signature = (step_id, tokens, counts = None, *, now))]
    fn complete(
        &mut self,
        py: Python<'_>,
        step_id: u64,
        tokens: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
        now: u64,
    ) -> PyResult<Outputs> {
        let tokens = sampled(tokens, counts)?;
        let outputs = self.core.complete(StepId(step_id), tokens.as_slice()?, now).map_err(Error::from)?;
        self.calls += 1;
        Ok(Outputs::new(py, outputs))
    }

    fn fail(&mut self, py: Python<'_>, step_id: u64, now: u64) -> PyResult<Outputs> {
        self.calls += 1;
        Ok(Outputs::new(py, self.core.fail(StepId(step_id), now).map_err(Error::from)?))
    }

    fn take_finished(&mut self) -> Vec<Finished> {
        self.calls += 1;
        self.core.take_finished().into_iter().map(Finished::from).collect()
    }

    fn reserve<'py>(&mut self, py: Python<'py>, request: &Request, now: u64) -> PyResult<Option<Reserved<'py>>> {
        self.calls += 1;
        match self.core.reserve(request.0.clone(), now) {
            Ok(sched::Reservation { missing, blocks }) => {
                let blocks = PyArray1::from_iter(py, blocks.iter().map(|block| block.0 as i32));
                Ok(Some(((missing.start, missing.end), blocks)))
            }
            Err(sched::ReserveError::NoSpace { .. }) => Ok(None),
            Err(error) => Err(Error::from(error).into()),
        }
    }

    fn arrived(&mut self, id: u64, start: u32, end: u32, now: u64) -> Option<bool> {
        self.calls += 1;
        complete(self.core.arrived(RequestId(id), TokenRange { start, end }, now))
    }

    fn hand_over(&mut self, id: u64, token: u32, now: u64) -> Option<bool> {
        self.calls += 1;
        complete(self.core.hand_over(RequestId(id), token, now))
    }

    fn release(&mut self, id: u64, now: u64) -> bool {
        self.calls += 1;
        self.core.release(RequestId(id), now)
    }

    fn pin(&mut self, id: u64, pin: u64) -> bool {
        self.calls += 1;
        self.core.pin(RequestId(id), pin)
    }

    fn unpin(&mut self, id: u64, pin: u64) -> bool {
        self.calls += 1;
        self.core.unpin(RequestId(id), pin)
    }

    fn has_unfinished(&self) -> bool {
        self.core.has_unfinished()
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.core.poll_timeout()
    }

    fn reset_prefix_cache(&mut self) -> bool {
        self.calls += 1;
        self.core.reset_prefix_cache()
    }

    fn is_idle(&self) -> bool {
        self.core.is_idle()
    }

    fn tokens<'py>(&self, py: Python<'py>, id: u64) -> Option<Bound<'py, PyArray1<u32>>> {
        Some(PyArray1::from_slice(py, self.core.tokens(RequestId(id))?))
    }

    fn blocks<'py>(&self, py: Python<'py>, id: u64) -> Option<Bound<'py, PyArray1<i32>>> {
        let blocks = self.core.blocks(RequestId(id))?;
        Some(PyArray1::from_iter(py, blocks.iter().map(|block| block.0 as i32)))
    }

    #[getter]
    fn num_unfinished(&self) -> usize {
        self.core.num_unfinished()
    }

    #[getter]
    fn num_running(&self) -> u32 {
        self.core.num_running()
    }

    #[getter]
    fn num_waiting(&self) -> usize {
        self.core.num_waiting()
    }

    #[getter]
    fn num_in_flight(&self) -> usize {
        self.core.num_in_flight()
    }

    #[getter]
    fn num_free_blocks(&self) -> u32 {
        self.core.pool().num_free()
    }

    #[getter]
    fn num_used_blocks(&self) -> u32 {
        self.core.pool().num_used()
    }

    #[getter]
    fn num_rows(&self) -> u32 {
        self.core.config().num_rows()
    }

    #[getter]
    fn max_blocks_per_row(&self) -> u32 {
        self.core.config().max_blocks_per_row()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats(py, self.core.stats())
    }

    fn check(&self) -> PyResult<()> {
        self.core.check().map_err(pyo3::exceptions::PyAssertionError::new_err)
    }
}

type Reserved<'py> = ((u32, u32), Bound<'py, PyArray1<i32>>);

fn complete(arrival: Arrival) -> Option<bool> {
    match arrival {
        Arrival::Complete => Some(true),
        Arrival::Waiting => Some(false),
        Arrival::Unknown => None,
    }
}

pub fn stats<'py>(py: Python<'py>, stats: &sched::Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let sched::Stats { steps, planned_tokens, output_tokens, dropped_tokens, prefix_queries, .. } = *stats;
    let sched::Stats { prefix_hits, preemptions, recovered_tokens, late_steps, unknown_requests, .. } = *stats;
    for (name, value) in [
        ("steps", steps),
        ("planned_tokens", planned_tokens),
        ("output_tokens", output_tokens),
        ("dropped_tokens", dropped_tokens),
        ("prefix_queries", prefix_queries),
        ("prefix_hits", prefix_hits),
        ("preemptions", preemptions),
        ("recovered_tokens", recovered_tokens),
        ("late_steps", late_steps),
        ("unknown_requests", unknown_requests),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
