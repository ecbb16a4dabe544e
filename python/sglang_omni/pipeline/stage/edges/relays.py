"""The relays of a stage, one for each backend that its edges use, and which of them carries an edge."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

from sglang_omni.compat.plain_relay import as_relay
from sglang_omni.relay.base import Relay, create_relay


class EdgeRelays:
    """Says which relay carries an edge. Both ends know it beforehand, from the plan of the pipeline's edges.

    Args:
        stage: The stage's instance, for error texts.
        relays: Backend -> its relay.
        send_over: Target -> the backend that carries what is sent there.
        receive_over: Source -> the backend that carries what comes from there.
    """

    def __init__(
        self,
        stage: str,
        relays: Mapping[str, Relay],
        send_over: Mapping[str, str],
        receive_over: Mapping[str, str],
    ) -> None:
        relays = {backend: as_relay(relay) for backend, relay in relays.items()}
        self.all = list(relays.values())
        self._stage = stage
        self._is_planned = True
        self._any: Relay | None = None
        self._to = {target: relays[backend] for target, backend in send_over.items()}
        self._from = {source: relays[backend] for source, backend in receive_over.items()}

    @classmethod
    def open(
        cls,
        stage: str,
        options: Mapping[str, Mapping[str, Any]],
        send_over: Mapping[str, str],
        receive_over: Mapping[str, str],
    ) -> Self:
        """Creates a relay of each backend in ``options``, with those options of ``create_relay``.

        Raises:
            ValueError: No backend has that name, or it refuses its options.
            ImportError: A library that the backend needs is not installed.
        """
        relays: dict[str, Relay] = {}
        with ExitStack() as undo:
            for backend, given in options.items():
                relays[backend] = create_relay(backend, **{"engine_id": stage, **given})
                undo.callback(relays[backend].close)
            edges = cls(stage, relays, send_over, receive_over)
            undo.pop_all()
        return edges

    @classmethod
    def single(cls, stage: str, relay: Relay | None, config: Mapping[str, Any] | None = None) -> Self:
        """One relay, or none, for every edge.

        Args:
            config: Makes the relay if none is given: ``relay_type`` and the options of ``create_relay``.
        """
        if relay is None and config is not None:
            options = {"engine_id": stage, **config}
            relay = create_relay(options.pop("relay_type", "shm"), **options)
        edges = cls(stage, {} if relay is None else {"": relay}, {}, {})
        edges._is_planned, edges._any = False, next(iter(edges.all), None)
        return edges

    def to(self, target: str) -> Relay:
        """The relay that carries items to ``target``. Raises RuntimeError if there is none."""
        relay = self._to.get(target, self._any)
        if relay is None:
            raise RuntimeError(f"stage {self._stage!r} has no relay to send to {target!r} with")
        return relay

    def from_(self, source: str) -> Relay:
        """The relay that carries items from ``source``. Raises RuntimeError if there is none."""
        relay = self._from.get(source, self._any)
        if relay is None:
            raise RuntimeError(f"stage {self._stage!r} has no relay to read what {source!r} sends")
        return relay

    def expects(self, source: str) -> bool:
        """True if messages may come from ``source``, beside items handed over inside the process."""
        return source in self._from or not self._is_planned

    def cleanup(self, request_id: str) -> None:
        """Frees what a request still has under way and no reader has begun to read, in every relay."""
        for relay in self.all:
            relay.cleanup(request_id)

    def close(self) -> None:
        """Closes every relay, also if one of them fails to."""
        with ExitStack() as closing:
            for relay in self.all:
                closing.callback(relay.close)
