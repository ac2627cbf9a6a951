//! `Step`: a plan, and its arrays, built on first access.
//!
//! One `StepBuffers` object owns the memory of all arrays of a step and is the base of every view. When the last view
//! has died, the buffers go back to the machine that made them and are used again once the step is done: never
//! rewritten under a reader.

use crate::scheduler::Scheduler;
use crate::worker::Worker;
use numpy::ndarray::ArrayView1;
use numpy::{Element, PyArray1, PyArray2, PyArrayMethods};
use pdsched_core::scheduler::{StepArrays, StepPlan, TableWrite};
use pdsched_core::{self as core, RequestId, Row, StepId};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};

/// Buffers kept for later steps: as many as steps can be in flight, and one more.
const MAX_SPARE: usize = 17;

/// Buffers that no view refers to any more, with the step they were made for.
#[derive(Clone, Default)]
pub struct Spare(Arc<Mutex<Vec<(StepId, StepArrays)>>>);

impl Spare {
    fn take(&self, completed: StepId) -> StepArrays {
        let mut spare = self.0.lock().expect("no panic while locked");
        let usable = spare.iter().position(|(step, _)| *step <= completed);
        usable.map(|index| spare.swap_remove(index).1).unwrap_or_default()
    }
}

/// Owner of the memory of one step's arrays.
#[pyclass(frozen, module = "pdsched")]
pub struct StepBuffers {
    step: StepId,
    arrays: StepArrays,
    spare: Spare,
}

impl Drop for StepBuffers {
    fn drop(&mut self) {
        let arrays = std::mem::take(&mut self.arrays);
        if let Ok(mut spare) = self.spare.0.lock()
            && spare.len() < MAX_SPARE
        {
            spare.push((self.step, arrays));
        }
    }
}

/// The machine that planned a step.
pub enum Source {
    Scheduler(Py<Scheduler>),
    Worker(Py<Worker>),
}

impl Source {
    fn with<R>(&self, py: Python<'_>, read: impl FnOnce(&core::Scheduler, u64, &Spare) -> R) -> PyResult<R> {
        match self {
            Self::Scheduler(scheduler) => {
                let scheduler = scheduler.try_borrow(py)?;
                Ok(read(&scheduler.core, scheduler.calls, &scheduler.spare))
            }
            Self::Worker(worker) => {
                let worker = worker.try_borrow(py)?;
                Ok(read(worker.core.scheduler(), worker.calls, &worker.spare))
            }
        }
    }
}

/// What is built on first access.
struct Built {
    buffers: Py<StepBuffers>,
    opened: Vec<Py<Opened>>,
}

/// What Python sees of a plan besides its arrays.
struct Facts {
    id: StepId,
    num_seqs: usize,
    num_decodes: u32,
    num_tokens: u32,
    num_samples: u32,
    table_diff: Vec<TableWrite>,
    closed: Vec<Row>,
    preempted: Vec<RequestId>,
}

impl From<&StepPlan> for Facts {
    fn from(plan: &StepPlan) -> Self {
        let StepPlan { id, num_decodes, num_tokens, num_samples, .. } = *plan;
        let (table_diff, closed, preempted) = (plan.table_diff.clone(), plan.closed.clone(), plan.preempted.clone());
        Self { id, num_seqs: plan.entries.len(), num_decodes, num_tokens, num_samples, table_diff, closed, preempted }
    }
}

#[pyclass(frozen, module = "pdsched")]
pub struct Step {
    source: Source,
    /// The machine's call counter when the step was planned.
    calls: u64,
    plan: Facts,
    built: PyOnceLock<Built>,
}

#[pyclass(frozen, get_all, module = "pdsched")]
pub struct Opened {
    row: u32,
    id: u64,
    extra: Py<PyBytes>,
    token_ids: Py<PyArray1<u32>>,
    prompt_len: u32,
}

impl Step {
    pub fn new(source: Source, calls: u64, plan: &StepPlan) -> Self {
        Self { source, calls, plan: plan.into(), built: PyOnceLock::new() }
    }

    fn fresh<R>(&self, py: Python<'_>, read: impl FnOnce(&core::Scheduler, &Spare) -> R) -> PyResult<R> {
        let calls = self.calls;
        self.source.with(py, |scheduler, now, spare| (now == calls).then(|| read(scheduler, spare)))?.ok_or_else(|| {
            let step = self.plan.id;
            PyRuntimeError::new_err(format!("step {step}: its arrays must be taken before the scheduler's next call"))
        })
    }

    fn built(&self, py: Python<'_>) -> PyResult<&Built> {
        self.built.get_or_try_init(py, || {
            let step = self.plan.id;
            let (arrays, spare, opened) = self.fresh(py, |scheduler, spare| {
                let completed = scheduler.completed_through();
                let mut arrays = spare.take(completed);
                scheduler.build_arrays(step, &mut arrays);
                let opened: PyResult<Vec<_>> = scheduler.opened(step).map(|opened| Opened::new(py, opened)).collect();
                (arrays, spare.clone(), opened)
            })?;
            Ok(Built { buffers: Py::new(py, StepBuffers { step, arrays, spare })?, opened: opened? })
        })
    }

    fn view<'py, T: Element>(
        &self,
        py: Python<'py>,
        field: fn(&StepArrays) -> &Vec<T>,
    ) -> PyResult<Bound<'py, PyArray1<T>>> {
        let buffers = self.built(py)?.buffers.bind(py);
        let array = ArrayView1::from(field(&buffers.get().arrays).as_slice());
        // SAFETY: the vector lives, and is not touched, as long as its owner, which the array holds as its base.
        Ok(unsafe { PyArray1::borrow_from_array(&array, buffers.clone().into_any()) })
    }
}

impl Opened {
    fn new(py: Python<'_>, opened: core::scheduler::Opened<'_>) -> PyResult<Py<Self>> {
        let core::scheduler::Opened { row, id, extra, token_ids, prompt_len } = opened;
        let (extra, token_ids) = (PyBytes::new(py, extra).unbind(), PyArray1::from_slice(py, token_ids).unbind());
        Py::new(py, Self { row: row.0, id, extra, token_ids, prompt_len })
    }
}

type Int32<'py> = Bound<'py, PyArray1<i32>>;
type Int64<'py> = Bound<'py, PyArray1<i64>>;

#[pymethods]
impl Step {
    #[getter]
    fn id(&self) -> u64 {
        self.plan.id.0
    }

    #[getter]
    fn num_tokens(&self) -> u32 {
        self.plan.num_tokens
    }

    #[getter]
    fn num_seqs(&self) -> usize {
        self.plan.num_seqs
    }

    #[getter]
    fn num_decodes(&self) -> u32 {
        self.plan.num_decodes
    }

    #[getter]
    fn num_samples(&self) -> u32 {
        self.plan.num_samples
    }

    #[getter]
    fn token_ids<'py>(&self, py: Python<'py>) -> PyResult<Int64<'py>> {
        self.view(py, |arrays| &arrays.token_ids)
    }

    #[getter]
    fn positions<'py>(&self, py: Python<'py>) -> PyResult<Int64<'py>> {
        self.view(py, |arrays| &arrays.positions)
    }

    #[getter]
    fn slot_mapping<'py>(&self, py: Python<'py>) -> PyResult<Int64<'py>> {
        self.view(py, |arrays| &arrays.slot_mapping)
    }

    #[getter]
    fn query_start_loc<'py>(&self, py: Python<'py>) -> PyResult<Int32<'py>> {
        self.view(py, |arrays| &arrays.query_start_loc)
    }

    #[getter]
    fn seq_lens<'py>(&self, py: Python<'py>) -> PyResult<Int32<'py>> {
        self.view(py, |arrays| &arrays.seq_lens)
    }

    #[getter]
    fn logits_indices<'py>(&self, py: Python<'py>) -> PyResult<Int32<'py>> {
        self.view(py, |arrays| &arrays.logits_indices)
    }

    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Int32<'py>> {
        self.view(py, |arrays| &arrays.rows)
    }

    #[getter]
    fn sampled_rows<'py>(&self, py: Python<'py>) -> PyResult<Int32<'py>> {
        self.view(py, |arrays| &arrays.sampled_rows)
    }

    #[getter]
    fn gather<'py>(&self, py: Python<'py>) -> PyResult<(Int32<'py>, Int32<'py>)> {
        Ok((self.view(py, |arrays| &arrays.gather_positions)?, self.view(py, |arrays| &arrays.gather_rows)?))
    }

    #[getter]
    fn table_diff<'py>(&self, py: Python<'py>) -> (Int32<'py>, Int32<'py>, Int32<'py>) {
        let diff = &self.plan.table_diff;
        let rows = PyArray1::from_iter(py, diff.iter().map(|write| write.row.0 as i32));
        let columns = PyArray1::from_iter(py, diff.iter().map(|write| write.column as i32));
        (rows, columns, PyArray1::from_iter(py, diff.iter().map(|write| write.block.0 as i32)))
    }

    #[getter]
    fn opened(&self, py: Python<'_>) -> PyResult<Vec<Py<Opened>>> {
        Ok(self.built(py)?.opened.iter().map(|opened| opened.clone_ref(py)).collect())
    }

    #[getter]
    fn closed<'py>(&self, py: Python<'py>) -> Int32<'py> {
        PyArray1::from_iter(py, self.plan.closed.iter().map(|row| row.0 as i32))
    }

    #[getter]
    fn preempted(&self) -> Vec<u64> {
        self.plan.preempted.iter().map(|id| id.0).collect()
    }

    #[getter]
    fn block_tables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i32>>> {
        let step = self.plan.id;
        let (columns, table) = self.fresh(py, |scheduler, _| {
            let columns = scheduler.max_blocks(step);
            let mut table = Vec::with_capacity(columns * self.plan.num_seqs);
            scheduler.block_tables(step, columns, &mut table);
            (columns, table)
        })?;
        PyArray1::from_vec(py, table).reshape([self.plan.num_seqs, columns])
    }

    fn __repr__(&self) -> String {
        let plan = &self.plan;
        let (seqs, decodes) = (plan.num_seqs, plan.num_decodes);
        format!("Step(id={}, {} tokens, {seqs} sequences, {decodes} of them decodes)", plan.id, plan.num_tokens)
    }
}
