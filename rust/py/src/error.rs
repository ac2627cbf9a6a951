//! The one mapping of Rust errors to Python exceptions. What a caller did wrong is a `ValueError` that names the value.

use pdsched_core::cluster::{self, ClusterError};
use pdsched_core::kv::PoolError;
use pdsched_core::message::DecodeError;
use pdsched_core::record::ReplayError;
use pdsched_core::scheduler::{AddError, CompleteError, ConfigError, ReserveError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Any error of the core, on its way to Python.
pub enum Error {
    Value(String),
    /// The order of calls is wrong, not a value.
    State(String),
}

macro_rules! value_error {
    ($($kind:ty),*) => {
        $(impl From<$kind> for Error {
            fn from(error: $kind) -> Self {
                Self::Value(error.to_string())
            }
        })*
    };
}

value_error!(
    ClusterError,
    cluster::ConfigError,
    PoolError,
    DecodeError,
    ReplayError,
    AddError,
    ConfigError,
    ReserveError
);

impl From<CompleteError> for Error {
    fn from(error: CompleteError) -> Self {
        match error {
            CompleteError::NumTokens { .. } | CompleteError::Token { .. } => Self::Value(error.to_string()),
            CompleteError::Twice(_) => Self::State(error.to_string()),
        }
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        match error {
            Error::Value(text) => PyValueError::new_err(text),
            Error::State(text) => PyRuntimeError::new_err(text),
        }
    }
}
