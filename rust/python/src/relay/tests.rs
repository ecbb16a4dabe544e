//! Sender and reader in one process; several processes are tested from Python.

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;

use crate::test_support::{attach, run, run_in};

#[test]
fn a_payload_is_read_in_place_and_returned_with_its_last_view() {
    run(cr#"
arena = core.ShmArena(1 << 20)
plan = codec().plan({"a": Tensor(bytes(range(200)), "uint8", [200], [1])})
place, may_keep = arena.put("edge", "key", plan, 60.0)
assert may_keep and arena.state(place) == "ready" and arena.outstanding() == 1
lease = core.ShmLease(arena.name, place)
assert arena.state(place) == "held" and lease.nbytes == plan.nbytes
assert lease.arena.address <= lease.address < lease.arena.address + lease.arena.nbytes
view = memoryview(lease)
assert bytes(view) == plan.to_bytes() and not view.readonly
tensor = codec().unpack_payload(lease)["a"]
del lease, view
gc.collect()
assert arena.state(place) == "held" and tensor.to_bytes() == bytes(range(200))
del tensor
assert arena.state(place) == "returned" and arena.outstanding() == 0
assert "stale" in raised(core.LeaseError, core.ShmLease, arena.name, place)
"#);
}

#[test]
fn bytes_and_payloads_for_several_targets_cross_too() {
    run(cr#"
arena = core.ShmArena(1 << 20)
place, _ = arena.put_raw("edge", "key", memoryview(b"some bytes"), 60.0)
assert bytes(core.ShmLease(arena.name, place)) == b"some bytes"
plan = codec().plan([Tensor(bytes([7] * 5000), "uint8", [5000], [1])])
held = arena.hold(plan)
places = [arena.put_held(edge, "key", held, 60.0)[0] for edge in ("a", "b")]
assert arena.written() == 10 + plan.nbytes
leases = [core.ShmLease(arena.name, place, shared=True) for place in places]
# What one writes the other does not see.
memoryview(leases[0])[-1] = 9
assert memoryview(leases[1])[-1] == 7
del held, leases
assert arena.outstanding() == 0
"#);
}

#[test]
fn a_full_edge_and_a_failed_write_leave_nothing_behind() {
    run(cr#"
arena = core.ShmArena(1 << 20)
place, _ = arena.put_raw("edge", "first", bytes(900_000), 60.0)
text = raised(core.ArenaFull, arena.put_raw, "edge", "next", bytes(900_000), 60.0)
assert "'first'" in text.replace('"', "'") and "not read yet" in text, text
assert arena.revoke("first") == 1 and arena.state(place) == "free"
assert arena.state((*place[:3], 99_999, place[4])) == "free"
raised(ValueError, arena.put_raw, "edge", "key", b"bytes", -1.0)
raised(BufferError, arena.put_raw, "edge", "key", memoryview(b"bytes")[::2], 60.0)
assert arena.outstanding() == 0
assert [(edge, held) for edge, held, _ in arena.edges()] == [("edge", 0)]
assert not arena.revoke_place((0, 0, 0, 2**32 - 1, 0))
raised(core.LeaseError, core.ShmLease, arena.name, (0, 0, 10, 2**32 - 1, 0))
raised(core.LeaseError, core.ShmLease, "sglang-omni-nowhere", place)
assert core.ShmLease.try_open("sglang-omni-nowhere", place) is None
"#);
}

#[test]
fn a_lease_goes_to_its_heir_when_the_last_view_is_gone() {
    run(cr#"
arena = core.ShmArena(1 << 20)
def lease():
    return core.ShmLease(arena.name, arena.put_raw("edge", "key", b"inherited", 60.0)[0])

left = []
first = lease()
first.bequeath(left.append)
first.bequeath(lambda lease: left.extend("the second heir"))
view = memoryview(first)
del first
assert left == []
del view
[heir] = left
assert bytes(heir) == b"inherited" and arena.outstanding() == 1
del heir, left
assert arena.outstanding() == 0

# An heir that fails is reported and the payload returned.
reported = []
hook, sys.unraisablehook = sys.unraisablehook, lambda event: reported.append(type(event.exc_value))
try:
    failing = lease()
    failing.bequeath(lambda lease: 1 / 0)
    del failing
finally:
    sys.unraisablehook = hook
assert reported == [ZeroDivisionError] and arena.outstanding() == 0, (reported, arena.outstanding())
"#);
}

#[test]
fn a_payload_is_copied_to_buffers_that_have_room_for_it() {
    run(cr#"
arena = core.ShmArena(1 << 20)
lease = core.ShmLease(arena.name, arena.put_raw("edge", "key", bytes(range(100)), 60.0)[0])
target = bytearray(120)
lease.copy_to(target)
assert target == bytes(range(100)) + bytes(20)
# To a part of the payload itself.
lease.copy_to(lease)
assert bytes(lease) == bytes(range(100))
raised(ValueError, lease.copy_to, bytearray(99))
raised(BufferError, lease.copy_to, bytes(100))
"#);
}

#[test]
fn a_mapping_outlives_its_arena() {
    run(cr#"
arena = core.ShmArena(1 << 20)
mapping = arena.mapping
assert mapping.nbytes >= 1 << 20 and mapping.is_used_elsewhere
del arena
gc.collect()
assert not mapping.is_used_elsewhere and mapping.address > 0
"#);
}

#[test]
fn credits_extents_and_sums_are_pythons_too() {
    run(cr#"
ledger = core.CreditLedger(10)
assert ledger.take("edge", 10) and not ledger.take("edge") and ledger.limit == 10
ledger.note_wait("edge")
ledger.give_back("edge", 4)
assert "holds 6" in raised(ValueError, ledger.give_back, "edge", 7)
assert ledger.snapshot() == [("edge", 6, 1)] and ledger.held("edge") == 6
extents = core.Extents(1 << 14)
start, nbytes = extents.allocate(5000)
assert (start, nbytes) == (0, 8192) and extents.allocate(1 << 14) is None
extents.release(start, nbytes)
assert extents.allocate(1 << 14) == (0, 1 << 14)
assert core.checksum(b"") == core.checksum(bytearray()) != core.checksum(b"\0")
raised(BufferError, core.checksum, memoryview(b"1234")[::2])
"#);
}

#[test]
fn an_error_on_its_way_outlives_the_heir() {
    attach(|py| {
        let scope = run_in(
            py,
            cr#"
arena = core.ShmArena(1 << 20)
left = []
lease = core.ShmLease(arena.name, arena.put_raw("edge", "key", b"bytes", 60.0)[0])
def heir(lease):
    try:
        [][0]
    except IndexError:
        left.append(lease)
lease.bequeath(heir)
"#,
        );
        let lease = scope.get_item("lease").unwrap().unwrap();
        scope.del_item("lease").unwrap();
        PyKeyError::new_err("on its way").restore(py);
        drop(lease);
        let error = PyErr::take(py).expect("it is still on its way");
        assert!(error.is_instance_of::<PyKeyError>(py));
        let left = scope.get_item("left").unwrap().unwrap();
        assert_eq!(left.len().unwrap(), 1);
    });
}
