//! The packed-payload format: encode, decode, validate. No Python, no I/O.
