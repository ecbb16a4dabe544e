"""Publishes batches of events over ZeroMQ, as vLLM's and SGLang's publishers do."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from typing import Any

import zmq

from sglang_omni.proto.codec import pack
from sglang_omni.proto.kv_events import KvEventsConfig

logger = logging.getLogger(__name__)

_END = (-1).to_bytes(8, "big", signed=True)


class EventPublisher:
    """A thread that publishes batches, and sends the last ones again to who missed some.

    Raises:
        ValueError: An address cannot be listened on.
    """

    def __init__(self, config: KvEventsConfig) -> None:
        self._topic = config.topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._numbers = itertools.count()
        self._lost = 0
        # The process's: one of its own would be ended, and wait for the thread, when this is collected.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._pub = context.socket(zmq.PUB)
        self._pub.sndhwm = config.hwm
        _bind(self._pub, config.endpoint)
        self._replay: zmq.Socket[bytes] | None = None
        if config.replay_endpoint is not None:
            self._replay = context.socket(zmq.ROUTER)
            # Room for one whole replay; of a client that does not read, the rest is dropped.
            self._replay.sndhwm = config.buffer_steps + 1
            _bind(self._replay, config.replay_endpoint)
        self._queue, waiting = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self._queue.sndhwm, waiting.rcvhwm = config.max_queue_size, 1
        line = f"inproc://kv-events-{id(self)}"
        waiting.bind(line)
        self._queue.connect(line)
        threading.Thread(target=self._run, args=(waiting,), name="kv-events", daemon=True).start()
        logger.info("Events of the KV cache are published on %s", config.endpoint)

    def publish(self, batch: list[Any]) -> None:
        """Puts a batch in line. It is lost if the line is full: subscribers miss its number."""
        number = next(self._numbers).to_bytes(8, "big")
        try:
            self._queue.send_multipart([number, pack(batch)], zmq.NOBLOCK)
        except zmq.Again:
            self._lost += 1
            if self._lost.bit_count() == 1:
                logger.warning("Events of the KV cache come too fast: %d batches are lost", self._lost)

    def _run(self, waiting: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(waiting, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if waiting in ready:
                number, payload = waiting.recv_multipart()
                self._keep(int.from_bytes(number, "big"), payload)
                self._pub.send_multipart([self._topic, number, payload])
            if self._replay is not None and self._replay in ready:
                self._send_again(self._replay)

    def _keep(self, number: int, payload: bytes) -> None:
        if self._kept and self._kept[-1][0] + 1 != number:
            # A batch between them was lost: who got those before it again would take them for all there was.
            self._kept.clear()
        self._kept.append((number, payload))

    def _send_again(self, replay: zmq.Socket[bytes]) -> None:
        request = replay.recv_multipart()
        if len(request) != 3 or len(request[2]) != 8:
            return
        client, empty, start = request
        first = int.from_bytes(start, "big")
        for number, payload in self._kept:
            if number >= first:
                replay.send_multipart([client, empty, number.to_bytes(8, "big"), payload])
        replay.send_multipart([client, empty, _END, b""])


def _bind(socket: zmq.Socket[bytes], endpoint: str) -> None:
    socket.linger = 0
    # Not for others: a host without IPv6 could not listen then.
    socket.ipv6 = "[" in endpoint
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as exc:
        socket.close()
        raise ValueError(
            f"kv_events_config: cannot listen on {endpoint}: {exc}; another program, or another replica of "
            "this stage, may have the port: give another one"
        ) from None
