//! The names of blocks: hashes of their tokens and of all that comes before them, the same for every worker.

use rapidhash::v3::rapidhash_v3;

const TOKENS: u64 = 0x9e37_79b9_7f4a_7c15;
const CHAIN: u64 = 0xd6e8_feb8_6659_fd93;
const SIZE: u64 = 0xa076_1d64_78bd_642f;

/// The name that blocks of so many tokens begin with. `adapter` names what all of a prompt's blocks depend on.
pub fn root(block_size: u32, adapter: &[u8]) -> u64 {
    let root = fold(SIZE ^ u64::from(block_size), TOKENS);
    match adapter {
        [] => root,
        adapter => fold(root ^ rapidhash_v3(adapter), CHAIN),
    }
}

/// The name of the block that follows `parent`. `extra` is what its content depends on beside its tokens.
pub fn next(parent: u64, tokens: &[u32], extra: &[u8]) -> u64 {
    // The tokens are hashed apart from the chain, so that the processor works on several blocks at a time.
    let mut block = TOKENS;
    let (pairs, last) = tokens.as_chunks::<2>();
    for &[one, two] in pairs {
        block = fold(block ^ (u64::from(one) | u64::from(two) << 32), TOKENS);
    }
    if let [last] = last {
        block = fold(block ^ u64::from(*last), SIZE);
    }
    if !extra.is_empty() {
        block = fold(block ^ rapidhash_v3(extra), SIZE);
    }
    fold(parent ^ block, CHAIN)
}

/// Appends the names of the whole blocks of a prompt without extras.
pub fn of_prompt(tokens: &[u32], block_size: u32, adapter: &[u8], chain: &mut Vec<u64>) {
    let mut parent = root(block_size, adapter);
    chain.extend(tokens.chunks_exact(block_size as usize).map(|block| {
        parent = next(parent, block, b"");
        parent
    }));
}

/// A worker's own hash of a block as a number, if it is bytes; or an adapter's name as one.
pub fn of_bytes(name: &[u8]) -> u64 {
    rapidhash_v3(name)
}

fn fold(one: u64, two: u64) -> u64 {
    let product = u128::from(one) * u128::from(two);
    product as u64 ^ (product >> 64) as u64
}
