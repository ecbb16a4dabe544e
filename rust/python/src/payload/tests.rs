use crate::test_support::run;

#[test]
fn a_plan_is_written_to_the_beginning_of_a_buffer() {
    run(cr#"
plan = codec().plan(["skeleton", Tensor(bytes(range(100)), "uint8", [100], [1])])
assert plan.nbytes == len(plan.to_bytes())
target = bytearray(b"\xa5" * (plan.nbytes + 50))
plan.write_to(target)
assert target[:plan.nbytes].rstrip(b"\xa5") and target[plan.nbytes:] == b"\xa5" * 50
word, tensor = codec().unpack_payload(target[:plan.nbytes])
assert word == "skeleton" and tensor.to_bytes() == bytes(range(100))
exact = bytearray(plan.nbytes)
plan.write_to(memoryview(exact))
assert codec().unpack_payload(exact)[1].to_bytes() == bytes(range(100))
"#);
}

#[test]
fn buffers_that_cannot_take_a_plan_are_refused() {
    run(cr#"
memory = bytearray(4096)
plan = codec().plan([Tensor(memory, "uint8", [100], [1], first=3000)])
for buffer, kind in [
    (bytearray(plan.nbytes - 1), ValueError),
    (bytes(plan.nbytes), BufferError),
    (memoryview(bytearray(2 * plan.nbytes))[::2], BufferError),
    ("no buffer", TypeError),
]:
    raised(kind, plan.write_to, buffer)
before = bytes(memory)
# Its own tensors are part of it.
text = raised(ValueError, plan.write_to, memoryview(memory)[2990:2990 + plan.nbytes])
assert "written over" in text, text
assert memory == before
plan.write_to(memoryview(memory)[:plan.nbytes])
assert memory[:4] == b"SGOP"
"#);
}

#[test]
fn a_plan_without_tensors_points_to_nothing() {
    run(cr#"
plan = codec().plan({"a": 1})
assert (plan.tensors, plan.on_device) == (0, False)
assert codec().unpack_payload(plan.to_bytes()) == {"a": 1}
assert core.PAYLOAD_DTYPES[0] == "bool" and len(core.PAYLOAD_DTYPES) == 24
"#);
}
