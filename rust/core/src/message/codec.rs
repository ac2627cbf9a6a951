//! Messages as bytes: a version byte, then msgpack. Bytes exist only at the edge to Python; Rust drivers pass values.

use super::Envelope;
use thiserror::Error;

/// First byte of every encoded message. Changed whenever an older reader would misread a newer writer.
pub const VERSION: u8 = 1;

/// Bytes that are not a message.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Nothing there.
    #[error("empty message")]
    Empty,
    /// Written by another version.
    #[error("message version {0}, this side reads {VERSION}")]
    Version(u8),
    /// Not msgpack, or not one of our messages.
    #[error("malformed message: {0}")]
    Malformed(String),
}

impl Envelope {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        rmp_serde::encode::write(&mut bytes, self).expect("writing to a vector cannot fail");
        bytes
    }

    /// Decodes what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes.split_first() {
            None => Err(DecodeError::Empty),
            Some((&VERSION, rest)) => rmp_serde::from_slice(rest).map_err(|e| DecodeError::Malformed(e.to_string())),
            Some((&version, _)) => Err(DecodeError::Version(version)),
        }
    }
}
