//! The chained hash of a block: which prefix it ends, in 64 bits.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens that are hashed at once. Up to 128 bytes xxh3 stays on its short-input path, which needs no set-up.
const SEGMENT: usize = 32;

/// Hashes a block's tokens on top of its parent's hash with XXH3 (Collet, 2019).
///
/// It is fast rather than cryptographic, so a hash only *indexes*: whoever finds something by it compares tokens and parent
/// (as [`BlockPool`](super::BlockPool) does). A secret seed keeps outsiders from aiming for collisions. Equal on all
/// platforms for equal seed and width, so it may travel in messages.
///
/// ```
/// use pdsched_core::kv::BlockHasher;
///
/// let hasher = BlockHasher::new(42, 64);
/// let first = hasher.chain(0, &[1, 2, 3, 4]);
/// // The same tokens further down are another prefix.
/// assert_ne!(hasher.chain(first, &[1, 2, 3, 4]), first);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHasher {
    seed: u64,
    mask: u64,
}

impl BlockHasher {
    /// `bits` (1 to 64) is how much of each hash is kept: 64, or a few where a test wants collisions.
    ///
    /// # Panics
    /// If `bits` is out of range.
    pub fn new(seed: u64, bits: u32) -> Self {
        assert!((1..=64).contains(&bits), "hash width of {bits} bits, must be 1 to 64");
        Self { seed, mask: u64::MAX >> (64 - bits) }
    }

    /// The hash of `tokens` (one whole block) after the prefix that hashes to `parent`.
    #[inline]
    pub fn chain(&self, parent: u64, tokens: &[u32]) -> u64 {
        // The usual block size, spelled out: a copy of known length is a few moves, not a call.
        if let Ok(tokens) = <&[u32; 16]>::try_from(tokens) {
            return self.segment(parent, tokens) & self.mask;
        }
        tokens.chunks(SEGMENT).fold(parent, |hash, tokens| self.segment(hash, tokens)) & self.mask
    }

    #[inline(always)]
    fn segment(&self, parent: u64, tokens: &[u32]) -> u64 {
        let mut buffer = [0u8; 4 * SEGMENT];
        let bytes = &mut buffer[..4 * tokens.len()];
        for (bytes, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        xxh3_64_with_seed(bytes, parent ^ self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn k019_depends_on_seed_parent_and_every_token() {
        let tokens: Vec<u32> = (0..48).collect();
        let hash = BlockHasher::new(1, 64).chain(2, &tokens);
        assert_eq!(hash, BlockHasher::new(1, 64).chain(2, &tokens));
        let mut seen = BTreeSet::from([hash]);
        assert!(seen.insert(BlockHasher::new(3, 64).chain(2, &tokens)));
        assert!(seen.insert(BlockHasher::new(1, 64).chain(5, &tokens)));
        for i in 0..tokens.len() {
            let mut changed = tokens.clone();
            changed[i] ^= 1 << 31;
            assert!(seen.insert(BlockHasher::new(1, 64).chain(2, &changed)), "token {i} does not count");
        }
    }

    #[test]
    fn a_long_block_is_hashed_in_segments_of_the_same_chain() {
        let tokens: Vec<u32> = (0..50).collect();
        let hasher = BlockHasher::new(9, 64);
        assert_eq!(hasher.chain(7, &tokens), hasher.chain(hasher.chain(7, &tokens[..SEGMENT]), &tokens[SEGMENT..]));
    }

    #[test]
    fn a_narrow_hash_stays_within_its_width() {
        let hasher = BlockHasher::new(0, 4);
        let values: BTreeSet<u64> = (0..1000).map(|token| hasher.chain(0, &[token])).collect();
        assert_eq!(values, (0..16).collect());
    }

    #[test]
    fn is_the_same_on_every_platform_and_in_every_version() {
        // XXH3 of the little-endian bytes: hashes travel between workers that may not be built alike.
        assert_eq!(BlockHasher::new(0, 64).chain(0, &[1, 2]), 0x0389_e2c8_892d_5450);
        let block: [u32; 16] = std::array::from_fn(|i| i as u32);
        assert_eq!(BlockHasher::new(42, 64).chain(7, &block), 0xeab5_a233_8bd4_725f);
    }

    #[test]
    #[should_panic(expected = "hash width of 65 bits")]
    fn refuses_an_impossible_width() {
        BlockHasher::new(0, 65);
    }
}
