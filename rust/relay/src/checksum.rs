//! The checksum by which a reader of a peer's memory finds out whether it has read exactly one payload.

use rapidhash::v3::rapidhash_v3;

/// 64 bits that are the same in every build and on every machine, because sender and reader compare them.
pub fn checksum(bytes: &[u8]) -> u64 {
    rapidhash_v3(bytes)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn payload(seed: u8) -> Vec<u8> {
        (0..20_000_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed)
            .collect()
    }

    #[test]
    fn every_build_computes_the_same_sum() {
        assert_eq!(checksum(b""), 0x0338_dc4b_e2ce_cdae);
        assert_eq!(checksum(&payload(0)), 3_337_578_384_393_133_030);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes an hour")]
    fn no_mixture_of_two_payloads_passes_for_either() {
        let (old, new) = (payload(0), payload(1));
        let whole = [checksum(&old), checksum(&new)];
        // A read that met the writer at some byte, or that was served in parts of a cache line each.
        for torn in (64..old.len()).step_by(64) {
            let mut parts = [&old[..torn], &new[torn..]].concat();
            assert!(!whole.contains(&checksum(&parts)), "torn at {torn}");
            parts.copy_from_slice(&old);
            parts[torn - 64..torn].copy_from_slice(&new[torn - 64..torn]);
            assert!(!whole.contains(&checksum(&parts)), "line before {torn}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes an hour")]
    fn every_byte_counts() {
        let mut bytes = payload(0);
        let whole = checksum(&bytes);
        for place in (0..bytes.len()).step_by(7) {
            bytes[place] ^= 1 << (place % 8);
            assert_ne!(checksum(&bytes), whole, "byte {place}");
            bytes[place] ^= 1 << (place % 8);
        }
    }
}
