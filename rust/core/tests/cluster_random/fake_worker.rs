//! A worker that keeps to the protocol and computes nothing.

use pdsched_core::ids::{Attempt, Epoch, Incarnation, Peer, RequestId};
use pdsched_core::message::*;
use pdsched_core::request::Request;
use pdsched_core::time::Time;
use std::collections::{BTreeMap, VecDeque};

pub const BLOCK: u32 = 4;
pub const BLOCKS: u32 = 16;

/// What output number `index` of a request must be, whoever computes it.
pub fn token(request: RequestId, index: u32) -> u32 {
    request.0 as u32 * 1_000 + index
}

/// A worker that keeps to the protocol and computes nothing.
#[derive(Default)]
pub struct FakeWorker {
    pub role: Option<Role>,
    pub incarnation: u64,
    /// Alive, but does not get a word in.
    pub frozen: bool,
    pub epoch: Epoch,
    pub inbox: VecDeque<Envelope>,
    pub outbox: VecDeque<Envelope>,
    pub last_sent: Option<Envelope>,
    pub seq: u64,
    /// Hellos said in this life.
    pub generation: u32,
    pub heard_seq: u64,
    /// Made room; since when.
    pub reserved: BTreeMap<Attempt, (Request, Time)>,
    /// Prompts to compute.
    pub prefilling: BTreeMap<Attempt, Request>,
    /// Generating: the request and the index of its next output.
    pub decoding: BTreeMap<Attempt, (Request, u32)>,
}

impl FakeWorker {
    pub fn say(&mut self, from: Peer, body: Message) {
        self.seq += 1;
        let (seq, epoch) = (self.seq, self.epoch);
        let envelope = Envelope { from: Party::Worker(from), to: Incarnation(0), epoch, seq, body };
        self.last_sent = Some(envelope.clone());
        self.outbox.push_back(envelope);
    }

    pub fn hello(&mut self, from: Peer) {
        self.forget();
        let role = self.role.unwrap();
        let (fingerprint, address) = ("tiny".to_string(), Default::default());
        let (block_size, num_blocks, max_model_len, max_num_seqs) = (BLOCK, BLOCKS, 64, 8);
        self.generation += 1;
        let generation = self.generation;
        let hello =
            Hello { role, fingerprint, block_size, num_blocks, generation, max_model_len, max_num_seqs, address };
        self.say(from, Message::Hello(hello));
    }

    pub fn forget(&mut self) {
        self.reserved.clear();
        self.prefilling.clear();
        self.decoding.clear();
    }

    pub fn used_blocks(&self) -> u32 {
        let reserved = self.reserved.values().map(|(request, _)| request);
        let decoding = self.decoding.values().map(|(request, _)| request);
        reserved.chain(decoding).chain(self.prefilling.values()).map(|r| (r.max_total()).div_ceil(BLOCK)).sum()
    }
}
