//! Objects to bytes and back, in an interpreter; with real torch and numpy they are tested from Python.

use crate::test_support::run;

#[test]
fn what_is_packed_comes_back_with_its_types() {
    run(cr#"
def shown(value):
    """Its repr, which tells 1 from True and 0.0 from -0.0; a set's has no order of its own."""
    return sorted(map(repr, value)) if type(value) is set else repr(value)

values = [
    None, True, False, 0, -1, 2**63 - 1, -2**63, 2**64 - 1, 2**64, -2**63 - 1, 3**500, -3**500,
    0.0, -0.0, float("inf"), 1e-300, 1 - 2j, "", "text", "\0", "\U0001f600", "\ud800 alone", b"", bytes(300),
    [], [[]], (), ((),), (1, "two", None), {}, {"key": 1}, {(1, "two"): [3], None: 4, 5: 6, 7.5: 8, b"9": 10, True: 11},
    set(), {1, "two", (3,)}, frozenset(), frozenset({frozenset()}),
    Color.RED, Access.READ | Access.WRITE, Pair(1, [2]), Point(), Point(Point(1, 2), {"nested": (Point(),)}),
    [0] * 100_000, {str(number): number for number in range(3000)}, "a key that is longer than those that are kept" * 9,
]
for unpacked in (
    lambda value: codec().unpack(codec().pack(value)),
    lambda value: codec().unpack_payload(codec().plan(value).to_bytes()),
):
    for value in values:
        came = unpacked(value)
        assert came == value and type(came) is type(value) and shown(came) == shown(value), value
    assert unpacked(values) == values
# Other buffers arrive as bytes.
for buffer in (bytearray(b"bytes"), memoryview(b"bytes"), memoryview(b"-bytes-")[1:-1]):
    assert codec().unpack(bytearray(codec().pack(buffer))) == b"bytes"
"#);
}

#[test]
fn fields_that_are_not_there_stay_away() {
    run(cr#"
class Wide:
    pass

for count, absent in ((3, 1), (15, 1), (16, 1), (300, 1), (70_000, 69_999)):
    names = tuple(f"field_{number}" for number in range(count))
    tools = codec(
        describe=lambda cls: ("dataclass", "Wide", names),
        find=lambda name, trusted: (Wide, None, False, names, None),
    )
    value = Wide()
    vars(value).update((name, number) for number, name in enumerate(names) if number != absent)
    came = tools.unpack(tools.pack(value))
    assert vars(came) == vars(value) and type(came) is Wide
"#);
}

#[test]
fn containers_that_others_find_half_made_are_complete_or_absent() {
    run(cr#"
found = []
def revive(code, body):
    # As a profiler does, which then holds every container that there is.
    found.append([thing for thing in gc.get_objects() if type(thing) in (tuple, list)])
    return body
value = [(1, Raw(13, b"x"), (Raw(13, b"y"), 3)), Pair(Raw(13, b"z"), 5), frozenset({6})]
came = codec(revive=revive).unpack(codec().pack(value))
assert came == [(1, b"x", (b"y", 3)), Pair(b"z", 5), frozenset({6})], came
assert len(found) == 3
del found
"#);
}

#[test]
fn a_container_that_changes_while_it_is_packed_is_an_error() {
    run(cr#"
class Changing:
    def __init__(self, change):
        self.change = change
def described(cls):
    if cls is not Changing:
        return describe(cls)
    def encode(changing):
        changing.change()
        return 13, b""
    return "other", encode

def changed(container, change):
    changing = Changing(change)
    for place in range(2):
        filled = container(changing)
        change_it = change(filled)
        changing.change = change_it
        text = raised((ValueError, TypeError, RuntimeError), codec(describe=described).pack, filled)
        assert "changed" in text, text
changed(lambda it: [it, *range(100)], lambda filled: filled.clear)
changed(lambda it: [it, *range(100)], lambda filled: lambda: filled.append(1))
changed(lambda it: {"a": it, "b": 1}, lambda filled: filled.clear)
changed(lambda it: {"a": it}, lambda filled: lambda: filled.update({str(n): n for n in range(1000)}))
changed(lambda it: {it, 1, 2}, lambda filled: filled.clear)
"#);
}

#[test]
fn errors_name_the_place_in_the_object() {
    run(cr#"
pack = codec().pack
strange = {"a": [1, {Point(x={2: (3, Stranger())}).x[2][0]: Pair(Stranger(), 1)}]}
for value, path in [
    (Stranger(), "at the top"),
    (strange, "at ['a'][1][3].left"),
    (Point(x={2: (3, Stranger())}), "at .x[2][1]"),
    ({(1, Stranger): 2}, "at [key ("),
    ({frozenset({type})}, "}"),
]:
    text = raised(TypeError, pack, value)
    assert "cannot encode" in text and path in text, text
loop = []
loop.append((loop,))
assert "list at [0][0] contains itself" in raised(ValueError, pack, loop)
deep = []
for _ in range(600):
    deep = [deep]
assert "nested too deeply" in raised(ValueError, pack, deep)
# What a property raises is the user's to see.
@dataclasses.dataclass
class Broken:
    field: int
    @property
    def field(self):
        raise KeyError("mine")
    @field.setter
    def field(self, value):
        pass
assert "mine" in raised(KeyError, pack, Broken(1))
released = memoryview(b"gone")
released.release()
assert "its bytes cannot be read" in raised(TypeError, pack, [released])
"#);
}

#[test]
fn hostile_messages_are_value_errors() {
    run(cr#"
import random
unpack = codec().unpack
for message in (
    b"", b"\xc1", b"\x01\x01", b"\x91", b"\xdd\xff\xff\xff\xff", b"\xc7\x00\x63", b"\xd4\x01\x00",
    b"\x81\x90\x01", b"\x81\x80\x01", b"\xa1\xff", b"\xd4\x10\x00", b"\xd4\x02\x01",
    # Not hashable, in a set and as a key.
    b"\xd5\x02\x91\x90", b"\x81\xd5\x02\x91\x01\x02",
    # A class that is none, one of another kind, and a member that there is not.
    b"\xc7\x03\x07\x92\x01\x80", b"\xc7\x07\x06\x92\xa5Point", codec().pack(Color.RED).replace(b"RED", b"RAD"),
    codec().pack(Color.RED).replace(b"Color", b"Color".lower()), codec().pack(Point(1)).replace(b"\xa1x", b"\xa1z"),
):
    raised(ValueError, unpack, message)
assert "nested too deeply" in raised(ValueError, unpack, b"\x91" * 5000 + b"\x90")
assert "nested too deeply" in raised(ValueError, unpack, b"\x81\x01" * 5000 + b"\x90")
# What fails otherwise while a message is read is its fault too.
def revive(code, body):
    raise KeyError(code)
assert "KeyError: 13" in raised(ValueError, codec(revive=revive).unpack, codec().pack(Raw(13, b"")))
raised(ValueError, unpack, "a str is no buffer")
assert "1 tensors, not one of number" in raised(
    ValueError, codec().unpack_payload,
    codec().plan([Tensor(bytes(4), "uint8", [4], [1])]).to_bytes().replace(b"\xd4\x10\x00", b"\xd4\x10\x05"),
)

# Noise, and good messages with some bytes changed.
noise = random.Random(7)
memory = bytearray(range(256))
value = {
    "tensors": [Tensor(memory, "float32", [4, 4], [4, 1]), Array([3, 2], "<i2", memory, 3, [20, 6])],
    "rest": [Point(1, (2, 3)), Color.GREEN, Pair({4}, frozenset({5})), 3**90, 2j, b"6", {None: Access.READ}],
}
inside, beside = codec().pack(value), codec().plan(value).to_bytes()
unpacked = 0
for number in range(1000):
    for good, read in ((inside, unpack), (beside, codec().unpack_payload)):
        bad = bytearray(good)
        for _ in range(noise.randrange(1, 4)):
            bad[noise.randrange(len(bad))] = noise.randrange(256)
        if number % 4 == 0:
            del bad[noise.randrange(len(bad)):]
        try:
            came = read(bad)
        except ValueError:
            continue
        unpacked += 1
        repr(came)
        for tensor in came.get("tensors", ()) if isinstance(came, dict) else ():
            if isinstance(tensor, Tensor):
                tensor.to_bytes()
assert unpacked > 50
"#);
}

#[test]
fn tensors_are_packed_once_and_share_memory_as_before() {
    run(cr#"
memory = bytearray(range(200))
whole = Tensor(memory, "uint8", [100], [1])
part = Tensor(memory, "uint8", [5], [3], first=50)
plan = codec().plan({"a": whole, "b": [whole, part]})
assert (plan.tensors, plan.on_device) == (2, False)
assert plan.nbytes < 100 + 250
payload = bytearray(plan.to_bytes())
came = codec().unpack_payload(payload)
assert came["a"] is came["b"][0]
assert came["b"][1].address - came["a"].address == 50
assert came["b"][1].to_bytes() == bytes(range(50, 65, 3))
# Columns come without what is between them.
columns = [Tensor(memory, "uint8", [10, 1], [20, 1], first=first) for first in (0, 19)]
plan = codec().plan(columns)
assert plan.nbytes < 300
del columns
back = codec().unpack_payload(bytearray(plan.to_bytes()))
assert [column.to_bytes() for column in back] == [bytes(range(first, 200, 20)) for first in (0, 19)]
# In a message: contiguous ones by the core, others by Python.
back = codec().unpack(codec().pack([whole, Tensor(b"", "float32", [0], [1])]))
assert back[0].to_bytes() == bytes(range(100)) and back[1][:2] == ("revived", 12), back
"#);
}

#[test]
fn what_torch_cannot_view_is_made_by_python() {
    run(cr#"
payload = bytearray(codec().plan([Tensor(bytes(8), "float32", [2], [1]), Array([2], "<f4", bytes(8))]).to_bytes())
tools = codec(load_torch=lambda: object)
view, array = tools.unpack_payload(payload)
kind, dtype, offset, shape, strides = view
assert (kind, dtype, shape, strides) == ("viewed", "float32", (2,), (1,)) and offset % 64 == 0
assert isinstance(array, Array)
text = raised(ValueError, codec(numpy_dtypes={}).unpack_payload, payload)
assert text == 'numpy has no dtype "float32"', text
raised(ValueError, codec(load_torch=lambda: 1 / 0).unpack_payload, payload)
"#);
}

#[test]
fn classes_are_asked_for_once_and_names_until_they_are_forgotten() {
    run(cr#"
asked = []
def counted_describe(cls):
    asked.append(cls)
    return describe(cls)
def counted_find(name, trusted):
    asked.append((name, trusted))
    return find(name, trusted)
tools = codec(describe=counted_describe, find=counted_find)
packed = tools.pack([Point(), Point(), Color.RED])
tools.unpack(packed)
tools.unpack(packed, trusted=True)
assert asked == [Point, Color, ("Point", False), ("Color", False)], asked
tools.forget_names()
tools.unpack(packed, trusted=True)
assert asked[4:] == [("Point", True), ("Color", True)], asked
assert "no such kind of class" in raised(Exception, codec(describe=lambda cls: ("odd",)).pack, Point())
"#);
}

#[test]
fn threads_pack_and_unpack_at_once() {
    run(cr#"
tools = codec()
memory = bytearray(range(256))
def work(seed):
    value = {f"key {number}": [Point(seed, number), (seed,)] for number in range(50)}
    for _ in range(30):
        assert tools.unpack(tools.pack(value)) == value
        payload = bytearray(tools.plan([value, Tensor(memory, "uint8", [256], [1])]).to_bytes())
        came, tensor = tools.unpack_payload(payload)
        assert came == value and tensor.to_bytes() == bytes(range(256))
    done.append(seed)
done = []
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(done) == [0, 1, 2, 3]
"#);
}

#[test]
fn a_copy_stands_for_its_tensor_alone() {
    run(cr#"
class Making:
    """Makes a tensor of a GPU's memory each time that it is asked for one."""
    def __getattr__(self, name):
        number = int(name.removeprefix("tensor_"))
        return Tensor(bytes([number] * 8), "uint8", [8], [1], device=2)
names = tuple(f"tensor_{number}" for number in range(50))
def copied(tensor):
    copy = Tensor(tensor.to_bytes(), "uint8", [8], [1])
    return copy, 1, copy.address, [8], [1], False
tools = codec(
    describe=lambda cls: ("dataclass", "Making", names) if cls is Making else describe(cls),
    find=lambda name, trusted: (Stranger, None, False, names, None),
    describe_tensor=copied,
)
came = tools.unpack_payload(bytearray(tools.plan(Making()).to_bytes()))
assert [getattr(came, name).to_bytes()[0] for name in names] == list(range(50))
text = raised(TypeError, codec(describe_tensor=lambda tensor: (tensor, 99, 0, [], [], False)).plan, Making().tensor_1)
assert "unknown dtype" in text, text
"#);
}
