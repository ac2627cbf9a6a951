//! Words that all golden languages share.

use pdsched_core::ids::{Attempt, Incarnation, Peer, RequestId, WorkerId};
use pdsched_core::request::Request;
use pdsched_core::scheduler::SchedulerConfig;

pub fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}

pub fn small(word: &str) -> u32 {
    number(word) as u32
}

/// `wID#INCARNATION`.
pub fn peer(word: &str) -> Peer {
    let (worker, incarnation) = word.strip_prefix('w').and_then(|rest| rest.split_once('#')).expect("wID#INCARNATION");
    Peer { worker: WorkerId(number(worker) as u32), incarnation: Incarnation(number(incarnation)) }
}

/// `REQUEST.NUMBER`.
pub fn attempt(word: &str) -> Attempt {
    let (request, tries) = word.split_once('.').expect("REQUEST.NUMBER");
    Attempt { request: RequestId(number(request)), number: number(tries) as u32 }
}

/// `A20+B4`: the first 20 tokens of text A, then the first 4 of text B. Equal texts are equal prefixes.
pub fn text(word: &str) -> Vec<u32> {
    let part = |part: &str| {
        let (letter, count) = part.split_at(1);
        let base = 1000 * u32::from(letter.as_bytes()[0] - b'A' + 1);
        base..base + small(count)
    };
    word.split('+').flat_map(part).collect()
}

/// `TEXT MAX_TOKENS [known=TEXT] [min=N] [stop=T] [ignore_eos] [ns=N]`.
pub fn request(id: u64, words: &[&str]) -> Request {
    let [prompt, max_tokens, rest @ ..] = words else { panic!("TEXT MAX_TOKENS ...: {words:?}") };
    let mut request = Request::new(id, &text(prompt), small(max_tokens));
    for word in rest {
        match word.split_once('=').unwrap_or((word, "")) {
            ("known", value) => request.token_ids = [&request.token_ids[..], &text(value)].concat().into(),
            ("min", value) => request.min_tokens = small(value),
            ("stop", value) => request.stop_token_ids = [small(value)].into(),
            ("ignore_eos", "") => request.ignore_eos = true,
            ("ns", value) => request.namespace = number(value),
            _ => panic!("no field {word} here"),
        }
    }
    request
}

/// `blocks=N size=N seqs=N budget=N [chunk=N] [len=N] [eos=T] [flight=N] [caching=0] [reserved=N] [watermark=N]`.
pub fn scheduler_config(words: &[&str]) -> SchedulerConfig {
    let mut config = SchedulerConfig::new(64, 4, 8, 64);
    for word in words {
        let (name, value) = word.split_once('=').expect("FIELD=N");
        let value = small(value);
        match name {
            "blocks" => config.num_blocks = value,
            "size" => config.block_size = value,
            "seqs" => config.max_num_seqs = value,
            "budget" => config.max_num_batched_tokens = value,
            "chunk" => config.chunk_size = Some(value),
            "len" => config.max_model_len = Some(value),
            "eos" => config.eos_token_id = Some(value),
            "flight" => config.max_steps_in_flight = value,
            "caching" => config.prefix_caching = value != 0,
            "reserved" => config.reserved_blocks = value,
            "watermark" => config.watermark_blocks = value,
            _ => panic!("no field {name} here"),
        }
    }
    config
}

/// The fields of a counter struct that are not zero, a line each.
pub fn counters(debug: &str) -> String {
    let (_, fields) = debug.split_once("{ ").expect("a struct");
    fields
        .trim_end_matches(" }")
        .split(", ")
        .filter(|field| !field.ends_with(": 0"))
        .fold(String::new(), |text, field| text + field + "\n")
}
