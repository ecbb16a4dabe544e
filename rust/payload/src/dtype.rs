//! Element types of the format.

/// An element type: its code in the format, torch's and numpy's name for it, and its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DType {
    pub code: u8,
    pub name: &'static str,
    pub itemsize: u64,
}

const fn dtype(code: u8, name: &'static str, itemsize: u64) -> DType {
    DType {
        code,
        name,
        itemsize,
    }
}

/// Every element type of the format; the code is the index and never changes its meaning.
pub const DTYPES: [DType; 24] = [
    dtype(0, "bool", 1),
    dtype(1, "uint8", 1),
    dtype(2, "int8", 1),
    dtype(3, "uint16", 2),
    dtype(4, "int16", 2),
    dtype(5, "uint32", 4),
    dtype(6, "int32", 4),
    dtype(7, "uint64", 8),
    dtype(8, "int64", 8),
    dtype(9, "float16", 2),
    dtype(10, "bfloat16", 2),
    dtype(11, "float32", 4),
    dtype(12, "float64", 8),
    dtype(13, "complex32", 4),
    dtype(14, "complex64", 8),
    dtype(15, "complex128", 16),
    dtype(16, "float8_e4m3fn", 1),
    dtype(17, "float8_e4m3fnuz", 1),
    dtype(18, "float8_e5m2", 1),
    dtype(19, "float8_e5m2fnuz", 1),
    dtype(20, "float8_e8m0fnu", 1),
    dtype(21, "float4_e2m1fn_x2", 1),
    dtype(22, "bits8", 1),
    dtype(23, "bits16", 2),
];

impl DType {
    pub fn from_code(code: u8) -> Option<Self> {
        DTYPES.get(usize::from(code)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_its_index() {
        for (index, dtype) in DTYPES.iter().enumerate() {
            assert_eq!(usize::from(dtype.code), index);
        }
    }
}
