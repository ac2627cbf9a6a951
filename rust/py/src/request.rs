//! `Request`, and what is told of one that ended.

use crate::ints;
use pdsched_core as core;
use pdsched_core::scheduler as sched;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

#[pyclass(frozen, module = "pdsched", from_py_object)]
#[derive(Clone)]
pub struct Request(pub core::Request);

#[pymethods]
impl Request {
    #[new]
    #[pyo3(signature = (id, prompt_token_ids, max_tokens, *, output_token_ids = None, min_tokens = 0, stop_token_ids = None,
        ignore_eos = false, namespace = 0, extra = None))]
    #[allow(clippy::too_many_arguments)] // one keyword per field
    fn new(
        id: u64,
        prompt_token_ids: &Bound<'_, PyAny>,
        max_tokens: u32,
        output_token_ids: Option<&Bound<'_, PyAny>>,
        min_tokens: u32,
        stop_token_ids: Option<&Bound<'_, PyAny>>,
        ignore_eos: bool,
        namespace: u64,
        extra: Option<&[u8]>,
    ) -> PyResult<Self> {
        let mut token_ids = ints::token_ids("prompt_token_ids", prompt_token_ids)?;
        let prompt_len =
            u32::try_from(token_ids.len()).map_err(|_| PyValueError::new_err("prompt_token_ids: over 2^32 tokens"))?;
        if let Some(outputs) = output_token_ids {
            token_ids.extend(ints::token_ids("output_token_ids", outputs)?);
        }
        let stops = stop_token_ids.map(|stops| ints::token_ids("stop_token_ids", stops)).transpose()?;
        Ok(Self(core::Request {
            id: core::RequestId(id),
            token_ids: token_ids.into(),
            prompt_len,
            max_tokens,
            min_tokens,
            stop_token_ids: stops.unwrap_or_default().into(),
            ignore_eos,
            namespace,
            extra: extra.unwrap_or_default().into(),
        }))
    }

    #[getter]
    fn id(&self) -> u64 {
        self.0.id.0
    }

    #[getter]
    fn prompt_len(&self) -> u32 {
        self.0.prompt_len
    }

    #[getter]
    fn max_tokens(&self) -> u32 {
        self.0.max_tokens
    }

    #[getter]
    fn extra<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.extra)
    }

    fn __repr__(&self) -> String {
        format!("Request(id={}, {} prompt tokens, max_tokens={})", self.0.id, self.0.prompt_len, self.0.max_tokens)
    }
}

#[pyclass(frozen, get_all, module = "pdsched")]
#[derive(Clone)]
pub struct Timing {
    arrived: u64,
    scheduled: Option<u64>,
    first_token: Option<u64>,
    finished: u64,
    preemptions: u32,
    num_cached_tokens: u32,
}

#[pymethods]
impl Timing {
    fn __repr__(&self) -> String {
        let Self { arrived, scheduled, first_token, finished, .. } = self;
        format!("Timing(arrived={arrived}, scheduled={scheduled:?}, first_token={first_token:?}, finished={finished})")
    }
}

#[pyclass(frozen, get_all, module = "pdsched")]
#[derive(Clone)]
pub struct Finished {
    id: u64,
    reason: Option<&'static str>,
    num_outputs: u32,
    timing: Timing,
}

impl From<sched::Finished> for Finished {
    fn from(finished: sched::Finished) -> Self {
        let sched::Finished { id, reason, num_outputs, timing: t } = finished;
        let timing = Timing {
            arrived: t.arrived,
            scheduled: t.scheduled,
            first_token: t.first_token,
            finished: t.finished,
            preemptions: t.preemptions,
            num_cached_tokens: t.num_cached_tokens,
        };
        Self { id: id.0, reason: reason.map(core::FinishReason::as_str), num_outputs, timing }
    }
}

#[pymethods]
impl Finished {
    fn __repr__(&self) -> String {
        format!(
            "Finished(id={}, reason={:?}, num_outputs={})",
            self.id,
            self.reason.unwrap_or("released"),
            self.num_outputs
        )
    }
}
