//! `SchedulerConfig`.

use crate::error::Error;
use pdsched_core as core;
use pdsched_core::scheduler::SeededBug;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(frozen, eq, module = "pdsched", from_py_object)]
#[derive(Clone, PartialEq)]
pub struct SchedulerConfig(pub core::SchedulerConfig);

#[pymethods]
impl SchedulerConfig {
    #[new]
    #[pyo3(signature = (num_blocks, block_size, max_num_seqs, max_num_batched_tokens, *, chunk_size = None,
        max_model_len = None, eos_token_id = None, max_steps_in_flight = 1, prefix_caching = true, reserved_blocks = 0,
        watermark_blocks = 0, hash_seed = 0, hash_bits = 64, seeded_bug = None))]
    #[allow(clippy::too_many_arguments)] // one keyword per field
    fn new(
        num_blocks: u32,
        block_size: u32,
        max_num_seqs: u32,
        max_num_batched_tokens: u32,
        chunk_size: Option<u32>,
        max_model_len: Option<u32>,
        eos_token_id: Option<u32>,
        max_steps_in_flight: u32,
        prefix_caching: bool,
        reserved_blocks: u32,
        watermark_blocks: u32,
        hash_seed: u64,
        hash_bits: u32,
        seeded_bug: Option<&str>,
    ) -> PyResult<Self> {
        let seeded_bug = seeded_bug
            .map(|name| bug(name).ok_or_else(|| PyValueError::new_err(format!("seeded_bug = {name:?}: no such bug"))));
        let config = core::SchedulerConfig {
            seeded_bug: seeded_bug.transpose()?,
            chunk_size,
            max_model_len,
            eos_token_id,
            max_steps_in_flight,
            prefix_caching,
            reserved_blocks,
            watermark_blocks,
            hash_seed,
            hash_bits,
            ..core::SchedulerConfig::new(num_blocks, block_size, max_num_seqs, max_num_batched_tokens)
        };
        config.validate().map_err(Error::from)?;
        Ok(Self(config))
    }

    #[getter]
    fn num_blocks(&self) -> u32 {
        self.0.num_blocks
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.0.block_size
    }

    #[getter]
    fn max_num_seqs(&self) -> u32 {
        self.0.max_num_seqs
    }

    #[getter]
    fn max_num_batched_tokens(&self) -> u32 {
        self.0.max_num_batched_tokens
    }

    #[getter]
    fn chunk_size(&self) -> Option<u32> {
        self.0.chunk_size
    }

    #[getter]
    fn max_model_len(&self) -> Option<u32> {
        self.0.max_model_len
    }

    #[getter]
    fn eos_token_id(&self) -> Option<u32> {
        self.0.eos_token_id
    }

    #[getter]
    fn max_steps_in_flight(&self) -> u32 {
        self.0.max_steps_in_flight
    }

    #[getter]
    fn num_rows(&self) -> u32 {
        self.0.num_rows()
    }

    #[getter]
    fn max_blocks_per_row(&self) -> u32 {
        self.0.max_blocks_per_row()
    }

    fn __repr__(&self) -> String {
        let core::SchedulerConfig { num_blocks, block_size, max_num_seqs, max_num_batched_tokens, .. } = self.0;
        format!(
            "SchedulerConfig(num_blocks={num_blocks}, block_size={block_size}, max_num_seqs={max_num_seqs}, max_num_batched_tokens={max_num_batched_tokens}, ...)"
        )
    }
}

/// Bugs for testing the tests; see the core.
fn bug(name: &str) -> Option<SeededBug> {
    serde_json::from_value(serde_json::Value::from(name)).ok()
}
