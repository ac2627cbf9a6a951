//! `BlockPool`.

use crate::error::Error;
use crate::ints;
use numpy::PyArray1;
use pdsched_core::kv::{self, BlockId, Namespace, NodeRef};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(module = "pdsched")]
pub struct BlockPool(kv::BlockPool);

impl BlockPool {
    fn owned(&self, blocks: &Bound<'_, PyAny>) -> PyResult<Vec<BlockId>> {
        let blocks = ints::token_ids("blocks", blocks)?;
        let mut shares = std::collections::BTreeMap::<u32, u32>::new();
        for &block in &blocks {
            *shares.entry(block).or_default() += 1;
        }
        for (&block, &shares) in &shares {
            if block >= self.0.config().num_blocks {
                return Err(PyValueError::new_err(format!(
                    "block {block} is not in 0..{}",
                    self.0.config().num_blocks
                )));
            }
            let owners = self.0.ref_count(BlockId(block));
            if owners < shares {
                return Err(PyValueError::new_err(format!("block {block} has {owners} owners, {shares} named")));
            }
        }
        Ok(blocks.into_iter().map(BlockId).collect())
    }
}

#[pymethods]
impl BlockPool {
    #[new]
    #[pyo3(signature = (num_blocks, block_size, *, reserved_blocks = 0, prefix_caching = true, hash_seed = 0, hash_bits = 64))]
    fn new(
        num_blocks: u32,
        block_size: u32,
        reserved_blocks: u32,
        prefix_caching: bool,
        hash_seed: u64,
        hash_bits: u32,
    ) -> PyResult<Self> {
        let config = kv::PoolConfig { num_blocks, block_size, reserved_blocks, prefix_caching, hash_seed, hash_bits };
        Ok(Self(kv::BlockPool::new(config).map_err(Error::from)?))
    }

    #[pyo3(signature = (token_ids, *, namespace = 0, max_blocks = None))]
    fn lookup<'py>(
        &self,
        py: Python<'py>,
        token_ids: &Bound<'py, PyAny>,
        namespace: u64,
        max_blocks: Option<u32>,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let tokens = ints::token_ids("token_ids", token_ids)?;
        let mut hits = Vec::new();
        self.0.lookup(Namespace(namespace), &tokens, max_blocks.unwrap_or(u32::MAX), &mut hits);
        Ok(PyArray1::from_iter(py, hits.iter().map(|block| block.0 as i32)))
    }

    /// Cached blocks of the prompt first, then new ones; all or nothing (`None`).
    #[pyo3(signature = (token_ids, num_blocks, *, namespace = 0))]
    fn allocate<'py>(
        &mut self,
        py: Python<'py>,
        token_ids: &Bound<'py, PyAny>,
        num_blocks: u32,
        namespace: u64,
    ) -> PyResult<Option<Allocation<'py>>> {
        let tokens = ints::token_ids("token_ids", token_ids)?;
        if num_blocks > self.0.num_usable() {
            return Ok(None);
        }
        let mut hits = Vec::new();
        self.0.lookup(Namespace(namespace), &tokens, num_blocks, &mut hits);
        let mut blocks = Vec::with_capacity(num_blocks as usize);
        match self.0.take(&hits, num_blocks - hits.len() as u32, &mut blocks) {
            Ok(()) => Ok(Some((PyArray1::from_iter(py, blocks.iter().map(|block| block.0 as i32)), hits.len()))),
            Err(kv::PoolError::NoSpace { .. }) => Ok(None),
            Err(error) => Err(Error::from(error).into()),
        }
    }

    /// Blocks written with these tokens become findable.
    #[pyo3(signature = (blocks, token_ids, *, namespace = 0))]
    fn register(&mut self, blocks: &Bound<'_, PyAny>, token_ids: &Bound<'_, PyAny>, namespace: u64) -> PyResult<usize> {
        let (blocks, tokens) = (self.owned(blocks)?, ints::token_ids("token_ids", token_ids)?);
        let mut node = NodeRef::root(Namespace(namespace));
        let full = tokens.chunks_exact(self.0.config().block_size as usize);
        let count = full.len().min(blocks.len());
        for (&block, tokens) in blocks.iter().zip(full) {
            node = self.0.register(block, node, tokens);
        }
        Ok(count)
    }

    fn release(&mut self, blocks: &Bound<'_, PyAny>) -> PyResult<()> {
        let blocks = self.owned(blocks)?;
        self.0.release_all(&blocks);
        Ok(())
    }

    fn ref_count(&self, block: u32) -> PyResult<u32> {
        if block >= self.0.config().num_blocks {
            return Err(PyValueError::new_err(format!("block {block} is not in 0..{}", self.0.config().num_blocks)));
        }
        Ok(self.0.ref_count(BlockId(block)))
    }

    fn reset_prefix_cache(&mut self) -> bool {
        self.0.reset_prefix_cache()
    }

    #[getter]
    fn num_free(&self) -> u32 {
        self.0.num_free()
    }

    #[getter]
    fn num_used(&self) -> u32 {
        self.0.num_used()
    }

    #[getter]
    fn num_cached(&self) -> u32 {
        self.0.num_cached()
    }

    fn check(&self) -> PyResult<()> {
        self.0.check().map_err(pyo3::exceptions::PyAssertionError::new_err)
    }
}

type Allocation<'py> = (Bound<'py, PyArray1<i32>>, usize);
