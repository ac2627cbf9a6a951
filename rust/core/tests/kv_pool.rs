//! [`BlockPool`] against a naive model: random requests over tiny pools, compared after every operation.
//!
//! The model knows no hashes, nodes, lists or ids. It writes down which whole prefix each findable block holds, and
//! recomputes everything else from that. Half of the cases use a hash of 4 bits, so that collisions are the rule.

use std::collections::{BTreeMap, BTreeSet};

use pdsched_core::kv::{BlockHasher, BlockId, BlockPool, Namespace, NodeRef, PoolConfig, PoolError};
use proptest::prelude::*;
use proptest::sample::Index;
use rustc_hash::FxHashMap;

/// A namespace and all tokens from the start.
type Path = (Namespace, Vec<u32>);

/// A prefix as the model sees it: a root, a node of some incarnation (a node that dies and comes back is another one), or
/// nothing that is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Prefix {
    Root(Namespace),
    Node(Path, u64),
    Detached,
}

struct Model {
    block_size: usize,
    refs: Vec<u32>,
    /// Front first.
    free: Vec<BlockId>,
    /// What each findable block holds.
    content: BTreeMap<BlockId, Path>,
    /// Every prefix of some findable block, with its incarnation.
    alive: BTreeMap<Path, u64>,
    incarnations: u64,
}

impl Model {
    fn new(config: &PoolConfig) -> Self {
        Self {
            block_size: config.block_size as usize,
            refs: vec![0; config.num_blocks as usize],
            free: (config.reserved_blocks..config.num_blocks).map(BlockId).collect(),
            content: BTreeMap::new(),
            alive: BTreeMap::new(),
            incarnations: 0,
        }
    }

    fn blocks_with(&self, path: &Path) -> Vec<BlockId> {
        self.content.iter().filter(|(_, at)| *at == path).map(|(&block, _)| block).collect()
    }

    /// The longest findable prefix, as the candidates for each of its blocks.
    fn lookup(&self, ns: Namespace, tokens: &[u32], max_blocks: u32) -> Vec<Vec<BlockId>> {
        (1..=(tokens.len() / self.block_size).min(max_blocks as usize))
            .map(|blocks| self.blocks_with(&(ns, tokens[..blocks * self.block_size].to_vec())))
            .take_while(|blocks| !blocks.is_empty())
            .collect()
    }

    fn take(&mut self, hits: &[BlockId], n_new: u32) -> Result<Vec<BlockId>, PoolError> {
        let revived: BTreeSet<_> = hits.iter().filter(|hit| self.refs[hit.index()] == 0).collect();
        let (needed, free) = (n_new + revived.len() as u32, self.free.len() as u32);
        if needed > free {
            return Err(PoolError::NoSpace { needed, free });
        }
        for &hit in hits {
            self.free.retain(|&block| block != hit);
            self.refs[hit.index()] += 1;
        }
        Ok(hits.iter().copied().chain((0..n_new).map(|_| self.allocate().unwrap())).collect())
    }

    fn allocate(&mut self) -> Option<BlockId> {
        let block = (!self.free.is_empty()).then(|| self.free.remove(0))?;
        self.refs[block.index()] = 1;
        self.content.remove(&block);
        self.update_alive();
        Some(block)
    }

    fn release(&mut self, block: BlockId) {
        self.refs[block.index()] -= 1;
        match self.refs[block.index()] {
            0 if self.content.contains_key(&block) => self.free.push(block),
            0 => self.free.insert(0, block),
            _ => {}
        }
    }

    fn register(&mut self, block: BlockId, parent: &Prefix, tokens: &[u32]) -> Prefix {
        let (ns, mut path) = match parent {
            Prefix::Root(ns) => (*ns, Vec::new()),
            Prefix::Node(path, incarnation) if self.alive.get(path) == Some(incarnation) => path.clone(),
            _ => {
                self.content.remove(&block);
                self.update_alive();
                return Prefix::Detached;
            }
        };
        path.extend(tokens);
        self.content.insert(block, (ns, path.clone()));
        self.update_alive();
        self.prefix(&(ns, path))
    }

    fn forget(&mut self, block: BlockId) -> bool {
        let forgotten = self.content.remove(&block).is_some();
        self.update_alive();
        if forgotten && self.refs[block.index()] == 0 {
            self.free.retain(|&other| other != block);
            self.free.insert(0, block);
        }
        forgotten
    }

    fn reset(&mut self) -> bool {
        let idle = self.refs.iter().all(|&refs| refs == 0);
        if idle {
            self.content.clear();
            self.update_alive();
        }
        idle
    }

    fn prefix(&self, path: &Path) -> Prefix {
        Prefix::Node(path.clone(), self.alive[path])
    }

    fn update_alive(&mut self) {
        let mut alive = BTreeMap::new();
        for (ns, tokens) in self.content.values() {
            for len in (self.block_size..=tokens.len()).step_by(self.block_size) {
                let path = (*ns, tokens[..len].to_vec());
                let incarnation = self.alive.get(&path).copied().unwrap_or_else(|| {
                    self.incarnations += 1;
                    self.incarnations
                });
                self.alive.insert(path.clone(), incarnation);
                alive.insert(path, incarnation);
            }
        }
        self.alive = alive;
    }
}

/// A request: its tokens and, from `first` on (what lies before was given back), its blocks.
#[derive(Clone)]
struct Sequence {
    ns: Namespace,
    tokens: Vec<u32>,
    first: usize,
    blocks: Vec<BlockId>,
    /// The prefixes of its written blocks, one for each from the start.
    written: Vec<(NodeRef, Prefix)>,
}

/// What may happen. The indices choose among the requests and blocks that there are at the time.
#[derive(Clone, Debug)]
enum Op {
    Admit { ns: u64, tokens: Vec<u32>, max_blocks: u32 },
    Extend { sequence: Index, tokens: Vec<u32> },
    Write { sequence: Index },
    WriteElsewhere { sequence: Index, block: Index, under: Index, tokens: Vec<u32> },
    Fork { sequence: Index },
    Finish { sequence: Index },
    DropFirst { sequence: Index },
    DropLast { sequence: Index },
    Share { blocks: Vec<Index>, n_new: u32 },
    Forget { block: Index },
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    let tokens = |len| proptest::collection::vec(0..2u32, len);
    let sequence = any::<Index>;
    prop_oneof![
        5 => (0..2u64, tokens(0..14), prop_oneof![3 => Just(u32::MAX), 1 => 0..4u32])
            .prop_map(|(ns, tokens, max_blocks)| Op::Admit { ns, tokens, max_blocks }),
        3 => (sequence(), tokens(1..6)).prop_map(|(sequence, tokens)| Op::Extend { sequence, tokens }),
        12 => sequence().prop_map(|sequence| Op::Write { sequence }),
        1 => (sequence(), sequence(), sequence(), tokens(4..5))
            .prop_map(|(sequence, block, under, tokens)| Op::WriteElsewhere { sequence, block, under, tokens }),
        1 => sequence().prop_map(|sequence| Op::Fork { sequence }),
        3 => sequence().prop_map(|sequence| Op::Finish { sequence }),
        1 => sequence().prop_map(|sequence| Op::DropFirst { sequence }),
        1 => sequence().prop_map(|sequence| Op::DropLast { sequence }),
        1 => (proptest::collection::vec(any::<Index>(), 0..6), 0..4u32)
            .prop_map(|(blocks, n_new)| Op::Share { blocks, n_new }),
        1 => any::<Index>().prop_map(|block| Op::Forget { block }),
        1 => Just(Op::Reset),
    ]
}

fn config() -> impl Strategy<Value = PoolConfig> {
    (2..14u32, 1..=4u32, 0..3u32, prop_oneof![Just(4), Just(64)], prop::bool::weighted(0.95), any::<u64>()).prop_map(
        |(usable, block_size, reserved_blocks, hash_bits, prefix_caching, hash_seed)| PoolConfig {
            num_blocks: usable + reserved_blocks,
            block_size,
            reserved_blocks,
            prefix_caching,
            hash_seed,
            hash_bits,
        },
    )
}

/// The pool, the model, and what both were told.
struct World {
    pool: BlockPool,
    model: Model,
    sequences: Vec<Sequence>,
    /// Every reference ever seen and what it stands for, both ways.
    meaning: FxHashMap<NodeRef, Prefix>,
    reference: FxHashMap<Prefix, NodeRef>,
}

impl World {
    fn new(config: PoolConfig) -> Self {
        let model = Model::new(&config);
        let pool = BlockPool::new(config).unwrap();
        Self { pool, model, sequences: Vec::new(), meaning: FxHashMap::default(), reference: FxHashMap::default() }
    }

    fn step(&mut self, op: Op) {
        let chosen = |index: Index| (!self.sequences.is_empty()).then(|| index.index(self.sequences.len()));
        match op {
            Op::Admit { ns, tokens, max_blocks } => self.admit(Namespace(ns), tokens, max_blocks),
            Op::Share { blocks, n_new } => self.share(&blocks, n_new),
            Op::Forget { block } => {
                let block = BlockId(block.index(self.model.refs.len()) as u32);
                assert_eq!(self.pool.forget(block), self.model.forget(block));
            }
            Op::Reset => assert_eq!(self.pool.reset_prefix_cache(), self.model.reset()),
            Op::Extend { sequence, tokens } => chosen(sequence).into_iter().for_each(|i| self.extend(i, &tokens)),
            Op::Write { sequence } => chosen(sequence).into_iter().for_each(|i| self.write(i)),
            Op::WriteElsewhere { sequence, block, under, tokens } => {
                chosen(sequence).into_iter().for_each(|i| self.write_elsewhere(i, block, under, &tokens));
            }
            Op::Fork { sequence } => chosen(sequence).into_iter().for_each(|i| self.fork(i)),
            Op::Finish { sequence } => chosen(sequence).into_iter().for_each(|i| self.finish(i)),
            Op::DropFirst { sequence } => chosen(sequence).into_iter().for_each(|i| self.drop_first(i)),
            Op::DropLast { sequence } => chosen(sequence).into_iter().for_each(|i| self.drop_last(i)),
        }
        self.compare();
    }

    fn admit(&mut self, ns: Namespace, tokens: Vec<u32>, max_blocks: u32) {
        let mut hits = Vec::new();
        let end = self.pool.lookup(ns, &tokens, max_blocks, &mut hits);
        let expected = self.model.lookup(ns, &tokens, max_blocks);
        assert_eq!(hits.len(), expected.len(), "length of the hit");
        for (hit, candidates) in hits.iter().zip(&expected) {
            assert!(candidates.contains(hit), "block {hit} holds something else");
            let owned = |block: &BlockId| self.model.refs[block.index()] > 0;
            assert!(owned(hit) || !candidates.iter().any(owned), "block {hit} is free, others are owned");
        }
        assert_eq!(end, hits.last().map_or(NodeRef::root(ns), |&hit| self.pool.node_of(hit).unwrap()));

        let written = hits.iter().map(|&hit| (self.pool.node_of(hit).unwrap(), self.model.content[&hit].clone()));
        let written = written.map(|(node, path)| (node, self.model.prefix(&path))).collect();
        let n_new = tokens.len().div_ceil(self.model.block_size) - hits.len();
        if let Some(blocks) = self.take(&hits, n_new as u32) {
            self.sequences.push(Sequence { ns, tokens, first: 0, blocks, written });
        }
    }

    /// Hits in any order, some of them twice, as no request has them.
    fn share(&mut self, blocks: &[Index], n_new: u32) {
        let all = (0..self.model.refs.len() as u32).map(BlockId);
        let known = |block: &BlockId| self.model.refs[block.index()] > 0 || self.model.content.contains_key(block);
        let known: Vec<_> = all.filter(known).collect();
        let hits: Vec<_> = blocks.iter().filter(|_| !known.is_empty()).map(|i| known[i.index(known.len())]).collect();
        if let Some(blocks) = self.take(&hits, n_new) {
            // They end in another order than that of any prefix.
            self.pool.release_all(&blocks);
            blocks.iter().rev().for_each(|&block| self.model.release(block));
        }
    }

    fn take(&mut self, hits: &[BlockId], n_new: u32) -> Option<Vec<BlockId>> {
        let mut out = vec![BlockId(99)];
        let (result, expected) = (self.pool.take(hits, n_new, &mut out), self.model.take(hits, n_new));
        assert_eq!(result, expected.as_ref().map(|_| ()).map_err(Clone::clone));
        // A refusal has no effect: `compare` sees to the rest of the pool, which the model has not touched.
        assert_eq!(out[1..], *expected.as_deref().unwrap_or(&[]));
        self.pool.check().unwrap();
        expected.ok()
    }

    fn extend(&mut self, i: usize, tokens: &[u32]) {
        for &token in tokens {
            let Sequence { tokens, first, blocks, .. } = &mut self.sequences[i];
            if tokens.len() == (*first + blocks.len()) * self.model.block_size {
                let block = self.pool.allocate();
                assert_eq!(block, self.model.allocate());
                let Some(block) = block else { return };
                blocks.push(block);
            }
            tokens.push(token);
        }
    }

    /// The request's next full block is written.
    fn write(&mut self, i: usize) {
        let Sequence { ns, tokens, first, blocks, written } = &self.sequences[i];
        let (next, size) = (written.len(), self.model.block_size);
        let (Some(tokens), true) = (tokens.get(next * size..(next + 1) * size), next >= *first) else {
            return;
        };
        let parent = written.last().cloned().unwrap_or((NodeRef::root(*ns), Prefix::Root(*ns)));
        let (block, tokens) = (blocks[next - first], tokens.to_vec());
        let prefix = self.register(block, &parent, &tokens);
        self.sequences[i].written.push(prefix);
    }

    /// A block of the request is overwritten with something that belongs elsewhere.
    fn write_elsewhere(&mut self, i: usize, block: Index, under: Index, tokens: &[u32]) {
        let everywhere: Vec<_> = self.sequences.iter().flat_map(|sequence| sequence.written.clone()).collect();
        let blocks = &self.sequences[i].blocks;
        if !everywhere.is_empty() && !blocks.is_empty() {
            let (block, parent) = (blocks[block.index(blocks.len())], &everywhere[under.index(everywhere.len())]);
            self.register(block, parent, &tokens[..self.model.block_size]);
        }
    }

    fn register(&mut self, block: BlockId, parent: &(NodeRef, Prefix), tokens: &[u32]) -> (NodeRef, Prefix) {
        let config = self.pool.config().clone();
        let node = self.pool.register(block, parent.0, tokens);
        let hash = BlockHasher::new(config.hash_seed, config.hash_bits).chain(parent.0.hash(), tokens);
        assert_eq!(node.hash(), hash);
        if !config.prefix_caching {
            return (node, Prefix::Detached);
        }
        let prefix = self.model.register(block, &parent.1, tokens);
        if prefix == Prefix::Detached {
            assert_eq!(self.pool.node_of(block), None);
        } else {
            assert_eq!(self.pool.node_of(block), Some(node));
        }
        (node, prefix)
    }

    fn fork(&mut self, i: usize) {
        let copy = self.sequences[i].clone();
        for &block in &copy.blocks {
            self.pool.retain(block);
            self.model.refs[block.index()] += 1;
        }
        self.sequences.push(copy);
    }

    fn finish(&mut self, i: usize) {
        let ended = self.sequences.swap_remove(i);
        self.pool.release_all(&ended.blocks);
        ended.blocks.iter().rev().for_each(|&block| self.model.release(block));
    }

    /// A sliding window moves on.
    fn drop_first(&mut self, i: usize) {
        let sequence = &mut self.sequences[i];
        if sequence.written.len() > sequence.first && !sequence.blocks.is_empty() {
            let block = sequence.blocks.remove(0);
            sequence.first += 1;
            self.pool.release(block);
            self.model.release(block);
        }
    }

    /// Drafts are rejected.
    fn drop_last(&mut self, i: usize) {
        let sequence = &mut self.sequences[i];
        if let Some(block) = sequence.blocks.pop() {
            let blocks = sequence.first + sequence.blocks.len();
            sequence.tokens.truncate(blocks * self.model.block_size);
            sequence.written.truncate(blocks);
            self.pool.release(block);
            self.model.release(block);
        }
    }

    /// Everything that can be seen from outside, and the pool's own check.
    fn compare(&mut self) {
        let (pool, model) = (&self.pool, &self.model);
        pool.check().unwrap();
        pool.check_owners(self.sequences.iter().flat_map(|sequence| sequence.blocks.iter().copied())).unwrap();
        assert_eq!(pool.free_order(), model.free);
        assert_eq!(pool.num_free() as usize, model.free.len());
        assert_eq!(pool.num_free() + pool.num_used(), pool.num_usable());
        assert_eq!(pool.num_cached() as usize, model.content.len());
        for block in (0..model.refs.len() as u32).map(BlockId) {
            assert_eq!(pool.ref_count(block), model.refs[block.index()]);
            let (node, prefix) = (pool.node_of(block), model.content.get(&block).map(|path| model.prefix(path)));
            assert_eq!(node.is_some(), prefix.is_some(), "whether block {block} is findable");
            // A reference always means the same prefix, and a prefix that lives always has the same reference.
            if let (Some(node), Some(prefix)) = (node, prefix) {
                assert_eq!(self.meaning.entry(node).or_insert(prefix.clone()), &prefix);
                assert_eq!(self.reference.entry(prefix).or_insert(node), &node);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn pool_equals_the_naive_model(config in config(), ops in proptest::collection::vec(op(), 1..80)) {
        let mut world = World::new(config);
        for op in ops {
            world.step(op);
        }
        while !world.sequences.is_empty() {
            world.finish(0);
            world.compare();
        }
        prop_assert_eq!(world.pool.num_free(), world.pool.num_usable());
    }
}
