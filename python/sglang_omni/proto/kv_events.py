"""What an engine publishes of its KV cache, and where: the formats of vLLM and SGLang.

Sources: ``vllm/distributed/kv_events.py``, ``vllm/config/kv_events.py`` and
``sglang/srt/disaggregation/kv_events.py``.

A message has three frames: the topic, a number that counts the batches (8 bytes, big endian), and in msgpack
``[time, events, rank]``. An event is ``["BlockStored", ...]``, ``["BlockRemoved", ...]`` or
``["AllBlocksCleared"]``.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

_ENDPOINT = re.compile(r"tcp://(?P<host>\*|[^\s:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_HIGHEST_PORT = 65535


@dataclass(frozen=True)
class KvEventsConfig:
    """The JSON of ``--kv-events-config``, whose names and defaults are vLLM's; but by default it publishes.

    Attributes:
        enable_kv_cache_events: False to publish nothing, as with the publisher ``"null"``.
        publisher: ``"zmq"`` or ``"null"``.
        endpoint: Of the PUB socket, as ``tcp://*:PORT``.
        replay_endpoint: Of the ROUTER socket that sends the last batches again; None for none.
        buffer_steps: How many batches that are.
        hwm: Batches that wait for one slow subscriber; it loses further ones.
        max_queue_size: Batches that wait to be published; further ones are lost.
        topic: The first frame.
    """

    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    @classmethod
    def parse(cls, text: str) -> KvEventsConfig:
        """
        Raises:
            ValueError: It is no such JSON; says what to write.
        """
        try:
            given = json.loads(text)
        except ValueError as exc:
            raise ValueError(f"{text!r} is not JSON ({exc}); write {_example()}") from None
        known = {field.name: field for field in fields(cls)}
        if not isinstance(given, dict):
            raise ValueError(f"{text!r} is not an object; write {_example()}")
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"unknown field {name!r}; there are {', '.join(known)}")
            default = known[name].default
            kind = str if default is None else type(default)
            if type(value) is not kind and not (value is None and default is None):
                raise ValueError(f"{name} is {json.dumps(value)}, and must be like {json.dumps(default)}")
            if isinstance(value, int) and kind is int and value < 1:
                raise ValueError(f"{name} is {value}, and must be at least 1")
        config = cls(**given)
        if config.publisher not in ("zmq", "null"):
            raise ValueError(f"publisher {config.publisher!r} is not known; there are zmq and null")
        if config.publishes:
            for endpoint in config._endpoints():
                _port(endpoint)
            if len({_port(endpoint) for endpoint in config._endpoints()}) < len(config._endpoints()):
                raise ValueError(f"replay_endpoint is endpoint, {config.endpoint}: give it another port")
        return config

    @property
    def publishes(self) -> bool:
        return self.enable_kv_cache_events and self.publisher == "zmq"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def of_rank(self, rank: int, size: int) -> KvEventsConfig:
        """The config of one of ``size`` replicas on a host: their ports follow each other.

        Raises:
            ValueError: The ports of two of them would be the same, or there are too few.
        """
        if not self.publishes:
            return self
        ports = [_port(endpoint) + each for endpoint in self._endpoints() for each in range(size)]
        if len(set(ports)) < len(ports):
            raise ValueError(
                f"{size} replicas take the ports from {self.endpoint} and from {self.replay_endpoint} on, "
                "which overlap: put more between them"
            )
        if max(ports) > _HIGHEST_PORT:
            raise ValueError(f"{size} replicas need ports up to {max(ports)}: begin at lower ones")
        moved = [f"{each.rpartition(':')[0]}:{_port(each) + rank}" for each in self._endpoints()]
        return replace(self, endpoint=moved[0], replay_endpoint=moved[1] if moved[1:] else None)

    def _endpoints(self) -> list[str]:
        return [self.endpoint] if self.replay_endpoint is None else [self.endpoint, self.replay_endpoint]


def _example() -> str:
    return '{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}'


def _port(endpoint: str) -> int:
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not 0 < int(match["port"]) <= _HIGHEST_PORT:
        raise ValueError(f"endpoint {endpoint!r} is not like tcp://*:5557")
    return int(match["port"])


def block_stored(
    hashes: list[int], parent: int | None, token_ids: list[int], block_size: int, extra_keys: list[Any]
) -> list[Any]:
    """The event of blocks that follow each other.

    Args:
        hashes: Their names.
        parent: The name of the block before; None for a prompt's first.
        token_ids: Of all of them.
        block_size: Tokens of each.
        extra_keys: For each, what its content depends on beside its tokens and the blocks before; None for
            nothing.
    """
    has_extras = any(extra is not None for extra in extra_keys)
    lora_id, medium, lora_name = None, "GPU", None
    return [
        "BlockStored",
        hashes,
        parent,
        token_ids,
        block_size,
        lora_id,
        medium,
        lora_name,
        extra_keys if has_extras else None,
    ]


def block_removed(hashes: list[int]) -> list[Any]:
    """The event of blocks that cannot be found any more."""
    return ["BlockRemoved", hashes, "GPU"]


def all_blocks_cleared() -> list[Any]:
    """The event of a cache in which nothing can be found any more."""
    return ["AllBlocksCleared"]
