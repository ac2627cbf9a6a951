//! What a worker hears from its host, and what it asks of it.

use super::transfer::Run;
use crate::ids::{Peer, TransferId};
use crate::message::{Envelope, Party};
use serde::{Deserialize, Serialize};

/// What the host reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // nearly all of them are messages
pub enum WorkerEvent {
    /// A message came.
    Message(Envelope),
    /// A chunk of a transfer is over: no more bytes of it will be written.
    TransferDone {
        /// The destination.
        peer: Peer,
        /// Its name for the transfer.
        transfer: TransferId,
        /// Which chunk.
        chunk: u32,
        /// All its bytes are in place.
        ok: bool,
    },
    /// A peer is dead, proven: its process ended or its memory is gone.
    Dead(Peer),
}

/// What the host shall do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // nearly all of them are messages
pub enum WorkerAction {
    /// Carry a message. It may be lost; never wait for it.
    Send {
        /// To whom.
        to: Party,
        /// What.
        message: Envelope,
    },
    /// Open the KV channel to a peer.
    Connect {
        /// The peer.
        peer: Peer,
        /// Its address as it gave it.
        address: Vec<u8>,
    },
    /// Close it.
    Disconnect(Peer),
    /// Copy these runs into the peer's blocks, then report `TransferDone`.
    StartTransfer {
        /// The destination.
        peer: Peer,
        /// Its name for the transfer.
        transfer: TransferId,
        /// Number of this part of it.
        chunk: u32,
        /// What goes where.
        runs: Vec<Run>,
    },
    /// Give up what is not copied yet. Each chunk started is still reported once no more of it will be written.
    CancelTransfer {
        /// The destination.
        peer: Peer,
        /// Its name for the transfer.
        transfer: TransferId,
    },
    /// A writer that does not answer must die; report [`WorkerEvent::Dead`] when that is proven.
    Kill(Peer),
}
