//! msgpack, written to a buffer and read token by token. It knows nothing of what the values mean.

mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{Malformed, Token, TokenReader};
pub use write::{
    OpenExt, TooLong, begin_ext, end_ext, write_array, write_bin, write_bool, write_ext,
    write_float, write_int, write_map, write_nil, write_str, write_uint,
};
