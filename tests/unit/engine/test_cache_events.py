"""The events of an engine's prefix cache: they say what can be found there, step for step."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from socket import AF_INET6, create_connection, create_server
from typing import Any

import msgspec
import pytest
import zmq
from text_engines import greedy, prompts, text_engine
from tiny_checkpoints import TinyCheckpoint
from waiting import PATIENCE, wait_until

from sglang_omni.engines.cache_events import CacheEvents
from sglang_omni.engines.event_publisher import EventPublisher
from sglang_omni.engines.resources import ResourceManager
from sglang_omni.proto.kv_events import KvEventsConfig

PAGE = 4
END = b"\xff" * 8


class Subscriber:
    """The prompts that a cache has, by what was published."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, ...]] = {}
        self.num_removed_together = 0
        self.num_cleared = 0

    def take(self, batch: list[Any]) -> None:
        _, events, rank = msgspec.msgpack.decode(msgspec.msgpack.encode(batch))
        assert rank == 0
        for kind, *fields in events:
            if kind == "AllBlocksCleared":
                assert fields == []
                assert self.blocks == {}
                self.num_cleared += 1
                continue
            hashes, *rest = fields
            if kind == "BlockRemoved":
                self.num_removed_together = max(self.num_removed_together, len(hashes))
                for block in hashes:
                    del self.blocks[block]
                continue
            assert kind == "BlockStored"
            parent, tokens, size, lora, medium, name, extras = rest
            assert (size, lora, medium, name, extras) == (PAGE, None, "GPU", None, None)
            assert len(tokens) == size * len(hashes)
            prompt = () if parent is None else self.blocks[parent]
            for at, block in enumerate(hashes):
                assert block not in self.blocks
                prompt += tuple(tokens[at * size : (at + 1) * size])
                self.blocks[block] = prompt


def found_in(resources: ResourceManager) -> set[tuple[int, ...]]:
    """The prompts whose last page can be found."""
    found = set[tuple[int, ...]]()
    nodes: dict[int, tuple[int, ...]] = {0: ()}
    # Nodes are numbered as they come, so that each comes after the one before it.
    for (parent, key), node in sorted(resources._nodes.items(), key=lambda item: item[1].id):
        if parent in nodes:
            nodes[node.id] = nodes[parent] + key
            found.add(nodes[node.id])
    return found


def test_events_say_what_can_be_found_after_each_step(
    tiny_checkpoint: Callable[..., TinyCheckpoint],
) -> None:
    engine = text_engine(tiny_checkpoint("llama").path, page_size=PAGE, max_total_tokens=30 * PAGE)
    resources, subscriber = engine.scheduler.resources, Subscriber()
    resources.events = CacheEvents(subscriber.take, PAGE)
    rng = random.Random(4)
    stems = prompts(4, [24, 12, 40])
    steps = most = 0

    def step() -> None:
        nonlocal steps, most
        engine.step()
        found = found_in(resources)
        assert set(subscriber.blocks.values()) == found
        steps, most = steps + 1, max(most, len(found))

    for number, tail in enumerate(prompts(5, [rng.randrange(1, 30) for _ in range(60)])):
        stem = rng.choice([[], *stems])
        engine.add(greedy(str(number), stem[: rng.randrange(len(stem) + 1)] + tail, rng.randrange(1, 30)))
        for _ in range(rng.randrange(6)):
            step()
        if rng.random() < 0.3:
            engine.abort(str(rng.randrange(number + 1)))
        if rng.random() < 0.05:
            engine.flush_cache()
            assert set(subscriber.blocks.values()) == found_in(resources)
    while engine.has_work:
        step()
    assert steps > 100
    assert most > 20
    assert subscriber.blocks
    cleared = subscriber.num_cleared
    engine.flush_cache()
    assert subscriber.blocks == {}
    assert subscriber.num_cleared == cleared + 1


def test_what_follows_a_lost_block_is_lost_with_it() -> None:
    batches: list[list[Any]] = []
    events = CacheEvents(batches.append, 2)
    events.stored(0, 1, [5, 6], (5, 6))
    events.stored(1, 2, [7, 8], (7, 8))
    events.stored(0, 3, [1, 1], (1, 1))
    events.flush()
    [[_, [chain, other], _]] = batches
    assert (chain[2:4], other[2:4]) == ([None, [5, 6, 7, 8]], [None, [1, 1]])
    events.removed(1)
    # Nobody finds what comes under the node that is left, nor misses it.
    events.stored(2, 4, [9, 9], (9, 9))
    events.removed(2)
    events.removed(4)
    events.flush()
    events.flush()
    assert [batch[1] for batch in batches[1:]] == [[["BlockRemoved", chain[1], "GPU"]]]
    # The same content has the same name when it comes again, and in another process.
    events.stored(0, 9, [5, 6], (5, 6))
    events.flush()
    assert batches[-1][1][0][1] == chain[1][:1] == [7249890671545390385]


def test_a_picture_is_another_block_than_its_placeholders() -> None:
    batches: list[list[Any]] = []
    events = CacheEvents(batches.append, 2)
    events.stored(0, 1, [5, 6], (5, 6))
    events.stored(1, 2, [100, 100], (-77, -77))
    events.stored(1, 3, [100, 100], (-78, -78))
    events.stored(3, 4, [7, 8], (7, 8))
    events.flush()
    [[_, (text, *pictures, after), _]] = batches
    assert [event[3] for event in pictures] == [[100, 100]] * 2
    assert pictures[0][1] != pictures[1][1]
    assert pictures[0][-1] != pictures[1][-1]
    assert all(len(event[-1]) == 1 for event in pictures)
    assert (text[-1], after[-1], after[2]) == (None, None, pictures[1][1][0])


@pytest.fixture
def sockets() -> Iterator[tuple[EventPublisher, Any, Any]]:
    """A publisher that keeps three batches, a subscriber of it, and a client of its replays."""
    context = zmq.Context()
    with create_server(("127.0.0.1", 0)) as one, create_server(("127.0.0.1", 0)) as two:
        live, replay = (f"tcp://127.0.0.1:{each.getsockname()[1]}" for each in (one, two))
    publisher = EventPublisher(
        KvEventsConfig(endpoint=live, replay_endpoint=replay, topic="kv", buffer_steps=3)
    )
    subscriber, client = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    subscriber.subscribe("kv")
    subscriber.connect(live)
    client.connect(replay)
    for socket in (subscriber, client):
        socket.rcvtimeo = int(PATIENCE * 1000)
    yield publisher, subscriber, client
    context.destroy(linger=0)


def test_batches_are_published_and_sent_again(sockets: tuple[EventPublisher, Any, Any]) -> None:
    publisher, subscriber, client = sockets

    def subscribed() -> bool:
        publisher.publish([0.0, [], 0])
        return bool(subscriber.poll(50))

    wait_until(subscribed, "a batch")
    first = int.from_bytes(subscriber.recv_multipart()[1], "big")
    while subscriber.poll(200):
        first = int.from_bytes(subscriber.recv_multipart()[1], "big")
    batches = [[float(at), [["BlockRemoved", [at], "GPU"]], 0] for at in range(1, 6)]
    for batch in batches:
        publisher.publish(batch)
    numbers = [(first + at).to_bytes(8, "big") for at in range(1, 6)]
    for number, batch in zip(numbers, batches, strict=True):
        topic, published, payload = subscriber.recv_multipart()
        assert (topic, published, msgspec.msgpack.decode(payload)) == (b"kv", number, batch)

    def again(start: bytes) -> list[tuple[bytes, Any]]:
        client.send_multipart([b"", start])
        answers: list[tuple[bytes, Any]] = []
        while True:
            empty, number, payload = client.recv_multipart()
            assert empty == b""
            if number == END:
                assert payload == b""
                return answers
            answers.append((number, msgspec.msgpack.decode(payload)))

    # It keeps three.
    kept = list(zip(numbers, batches, strict=True))[2:]
    assert again((0).to_bytes(8, "big")) == kept
    assert again(numbers[3]) == kept[1:]
    assert again((1 << 40).to_bytes(8, "big")) == []
    # What is no request is passed over.
    client.send_multipart([b"", b"short"])
    client.send_multipart([b"only"])
    assert again(numbers[4]) == kept[2:]


def test_what_is_sent_again_has_no_hole(sockets: tuple[EventPublisher, Any, Any]) -> None:
    publisher, _, client = sockets

    def kept() -> list[int]:
        client.send_multipart([b"", bytes(8)])
        numbers = list[int]()
        while (number := client.recv_multipart()[1]) != END:
            numbers.append(int.from_bytes(number, "big"))
        return numbers

    publisher.publish([0.0, [], 0])
    wait_until(lambda: kept() == [0], "the first batch")
    # What a line that is full does to a batch.
    next(publisher._numbers)
    publisher.publish([0.0, [], 0])
    publisher.publish([0.0, [], 0])
    wait_until(lambda: kept() == [2, 3], "what came after the one that was lost")


def test_an_address_of_ipv6() -> None:
    with create_server(("::1", 0), family=AF_INET6) as one:
        port = one.getsockname()[1]
    EventPublisher(KvEventsConfig.parse(f'{{"endpoint": "tcp://[::1]:{port}"}}'))
    with create_connection(("::1", port)):
        pass


def test_a_port_that_is_taken(sockets: tuple[EventPublisher, Any, Any]) -> None:
    _, subscriber, _ = sockets
    taken = subscriber.last_endpoint.decode()
    with pytest.raises(ValueError, match=r"cannot listen on tcp://127\.0\.0\.1:\d+: .*give another one"):
        EventPublisher(KvEventsConfig(endpoint=taken))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("endpoint", "is not JSON"),
        ("[]", "is not an object; write"),
        ('{"port": 1}', "unknown field 'port'; there are enable_kv_cache_events, publisher"),
        ('{"publisher": "kafka"}', "there are zmq and null"),
        ('{"endpoint": 5557}', 'endpoint is 5557, and must be like "tcp://'),
        ('{"endpoint": "ipc:///tmp/x"}', "is not like tcp://"),
        ('{"endpoint": "tcp://*:0"}', "is not like tcp://"),
        ('{"buffer_steps": 0}', "must be at least 1"),
        ('{"buffer_steps": true}', "buffer_steps is true"),
        ('{"endpoint": "tcp://*:7", "replay_endpoint": "tcp://*:7"}', "give it another port"),
    ],
)
def test_a_config_that_is_none(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        KvEventsConfig.parse(text)


def test_replicas_have_ports_of_their_own() -> None:
    config = KvEventsConfig.parse('{"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://[::1]:5560"}')
    assert KvEventsConfig.parse(config.to_json()) == config
    third = config.of_rank(2, 3)
    assert (third.endpoint, third.replay_endpoint) == ("tcp://*:5559", "tcp://[::1]:5562")
    with pytest.raises(ValueError, match="overlap"):
        config.of_rank(0, 4)
    with pytest.raises(ValueError, match="lower ones"):
        KvEventsConfig(endpoint="tcp://*:65535").of_rank(0, 2)
    assert not KvEventsConfig.parse('{"publisher": "null", "endpoint": "nowhere"}').publishes
