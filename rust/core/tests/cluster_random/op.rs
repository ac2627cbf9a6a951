//! What can happen, and how often.

use proptest::prelude::*;

/// One thing that happens. The number is a worker's.
#[derive(Clone, Debug)]
pub enum Op {
    Submit {
        prompt: u32,
        max_tokens: u32,
        reuse: bool,
    },
    Abort(prop::sample::Index),
    /// A worker reads a message.
    Read(usize),
    /// A worker's message reaches the cluster.
    Deliver(usize),
    Step(usize),
    Load(usize),
    Fail(usize, prop::sample::Index),
    RefuseNext(usize),
    Repeat(usize),
    LoseFromWorker(usize),
    LoseToWorker(usize),
    Kill(usize),
    Start(usize),
    Forget(usize),
    Freeze(usize),
    Wait(u64),
}

pub fn op(workers: usize) -> impl Strategy<Value = Op> {
    let w = 0..workers;
    prop_oneof![
        8 => (1..24u32, 1..6u32, prop::bool::weighted(0.1))
            .prop_map(|(prompt, max_tokens, reuse)| Op::Submit { prompt, max_tokens, reuse }),
        2 => any::<prop::sample::Index>().prop_map(Op::Abort),
        24 => w.clone().prop_map(Op::Read),
        24 => w.clone().prop_map(Op::Deliver),
        24 => w.clone().prop_map(Op::Step),
        4 => w.clone().prop_map(Op::Load),
        2 => (w.clone(), any::<prop::sample::Index>()).prop_map(|(w, i)| Op::Fail(w, i)),
        2 => w.clone().prop_map(Op::RefuseNext),
        2 => w.clone().prop_map(Op::Repeat),
        1 => w.clone().prop_map(Op::LoseFromWorker),
        1 => w.clone().prop_map(Op::LoseToWorker),
        1 => w.clone().prop_map(Op::Kill),
        2 => w.clone().prop_map(Op::Start),
        1 => w.clone().prop_map(Op::Forget),
        1 => w.prop_map(Op::Freeze),
        4 => (1..3_000u64).prop_map(Op::Wait),
    ]
}
