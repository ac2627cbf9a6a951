//! Integers that come in from Python: NumPy arrays of any integer type, buffers, torch tensors, lists.

use numpy::{PyArray1, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// A one-dimensional array of int64, borrowed where it is one already.
pub fn int64_array<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray1<'py, i64>> {
    if let Ok(array) = value.cast::<PyArray1<i64>>() {
        let array = array.readonly();
        // Not contiguous, or not aligned: copied below.
        if array.as_slice().is_ok() {
            return Ok(array);
        }
    }
    let numpy = value.py().import("numpy")?;
    let array = numpy.call_method1("asarray", (value,))?;
    let untyped = array.cast::<PyUntypedArray>()?;
    let kind = untyped.dtype().kind();
    if untyped.ndim() != 1 {
        return Err(PyValueError::new_err(format!("{name} has {} dimensions, expected 1", untyped.ndim())));
    }
    if untyped.len() > 0 && !matches!(kind, b'i' | b'u') {
        return Err(PyTypeError::new_err(format!("{name} has dtype {}, expected integers", untyped.dtype())));
    }
    let array = numpy.call_method1("require", (array, "int64", ["C", "A"]))?;
    Ok(array.cast::<PyArray1<i64>>()?.readonly())
}

/// Token ids. Lists are walked here, since NumPy takes longer over one than the scheduler over the request.
pub fn token_ids(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Ok(list) = value.cast::<PyList>() {
        return list.iter().enumerate().map(|(index, item)| token(name, index, &item)).collect();
    }
    if let Ok(array) = value.cast::<PyArray1<u32>>()
        && let Ok(ids) = array.readonly().as_slice()
    {
        return Ok(ids.to_vec());
    }
    let array = int64_array(name, value)?;
    let ids = array.as_array();
    let check = |(index, &id): (usize, &i64)| u32::try_from(id).map_err(|_| out_of_range(name, index, id));
    ids.iter().enumerate().map(check).collect()
}

fn token(name: &str, index: usize, item: &Bound<'_, PyAny>) -> PyResult<u32> {
    item.extract::<u32>().map_err(|_| match item.extract::<i64>() {
        Ok(id) => out_of_range(name, index, id),
        Err(_) => PyTypeError::new_err(format!("{name}[{index}] = {item}: expected a token id")),
    })
}

fn out_of_range(name: &str, index: usize, id: i64) -> PyErr {
    PyValueError::new_err(format!("{name}[{index}] = {id} is not a token id (0..2^32)"))
}
