//! `LoadBalancer`.

use crate::worker::to_role;
use pdsched_core::balance::{self, Report, WorkerLoad};
use pdsched_core::{RequestId, WorkerId};
use pyo3::exceptions::{PyAssertionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyclass(module = "pdsched")]
#[derive(Default)]
pub struct LoadBalancer(balance::LoadBalancer);

#[pymethods]
impl LoadBalancer {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn add_worker(&mut self, worker: u32, role: &str, capacity_tokens: u64) -> PyResult<bool> {
        if capacity_tokens == 0 {
            return Err(PyValueError::new_err(format!("worker {worker}: capacity_tokens = 0, must be at least 1")));
        }
        Ok(self.0.add_worker(WorkerId(worker), to_role(role)?, capacity_tokens))
    }

    fn remove_worker(&mut self, worker: u32) -> Vec<u64> {
        self.0.remove_worker(WorkerId(worker)).into_iter().map(|request| request.0).collect()
    }

    fn set_health(&mut self, worker: u32, up: bool) -> bool {
        self.0.set_health(WorkerId(worker), up)
    }

    #[pyo3(signature = (request, tokens, expected_output_tokens = 0))]
    fn place_decode(&mut self, request: u64, tokens: u64, expected_output_tokens: u64) -> Option<u32> {
        Some(self.0.place_decode(RequestId(request), tokens, expected_output_tokens)?.0)
    }

    fn place_prefill(&mut self, request: u64, prompt_tokens: u64) -> Option<u32> {
        Some(self.0.place_prefill(RequestId(request), prompt_tokens)?.0)
    }

    #[pyo3(signature = (request, tokens, expected_output_tokens = 0))]
    fn place_both(&mut self, request: u64, tokens: u64, expected_output_tokens: u64) -> Option<u32> {
        Some(self.0.place_both(RequestId(request), tokens, expected_output_tokens)?.0)
    }

    #[pyo3(signature = (tokens, expected_output_tokens = 0))]
    fn choose_decode(&self, tokens: u64, expected_output_tokens: u64) -> Option<u32> {
        Some(self.0.choose_decode(tokens, expected_output_tokens)?.0)
    }

    fn choose_prefill(&self, prompt_tokens: u64) -> Option<u32> {
        Some(self.0.choose_prefill(prompt_tokens)?.0)
    }

    fn sent(&mut self, request: u64, worker: u32, seq: u64) {
        self.0.sent(RequestId(request), WorkerId(worker), seq);
    }

    fn grow(&mut self, request: u64, tokens: u64) {
        self.0.grow(RequestId(request), tokens);
    }

    fn prefill_progress(&mut self, request: u64, computed: u64) {
        self.0.prefill_progress(RequestId(request), computed);
    }

    fn release_prefill(&mut self, request: u64) {
        self.0.release_prefill(RequestId(request));
    }

    fn release(&mut self, request: u64) -> bool {
        self.0.release(RequestId(request))
    }

    #[pyo3(signature = (worker, *, seq, acked_seq, used_tokens, prefill_tokens = 0))]
    fn report(&mut self, worker: u32, seq: u64, acked_seq: u64, used_tokens: u64, prefill_tokens: u64) -> bool {
        self.0.report(WorkerId(worker), Report { seq, acked_seq, used_tokens, prefill_tokens })
    }

    fn loads<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.0.loads().iter().map(|worker| load(py, worker)).collect()
    }

    #[getter]
    fn num_placed(&self) -> usize {
        self.0.num_placed()
    }

    fn check(&self) -> PyResult<()> {
        self.0.check().map_err(PyAssertionError::new_err)
    }
}

pub fn load<'py>(py: Python<'py>, load: &WorkerLoad) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("worker", load.worker.0)?;
    dict.set_item("role", load.role.as_str())?;
    dict.set_item("up", load.up)?;
    dict.set_item("capacity", load.capacity)?;
    dict.set_item("held", load.held)?;
    dict.set_item("booked", load.booked)?;
    dict.set_item("expected_growth", load.expected_growth)?;
    dict.set_item("occupancy", load.occupancy())?;
    dict.set_item("queued_prefill", load.queued_prefill)?;
    dict.set_item("placements", load.placements)?;
    Ok(dict)
}
