//! Shared-memory arena, slots, leases, credit ledger, reclaim. No Python.
