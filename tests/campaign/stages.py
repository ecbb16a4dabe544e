"""The campaign's pipeline for processes of its own: a, then b and c at once, then d.

It answers as ``asks.answer_to`` says. Imported by the processes of stages, so it imports nothing heavy.
"""

from __future__ import annotations

import gc
import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from traces import traces_of

from campaign.asks import PARTS, answer_to, part_of, pieces_of, text_of
from campaign.media_host import medium_of
from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.preprocessing.deadline import Aborted, until_aborted
from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.relay.shm.relay import ShmRelay
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.recent_ids import RecentIds

# A request whose id begins with it, and that has it, asks what each process holds.
INSPECT = "inspect"
_OF_POOL = re.compile(r"_\d+$")


@dataclass
class _Gathered:
    """What the last stage has of a request."""

    payload: StagePayload | None = None
    parts: list[np.ndarray] = field(default_factory=list)
    is_whole: bool = False


class CampaignScheduler:
    """Computes one request after another. What goes wrong is in a request's ``faults``, by stage."""

    def __init__(self, stage: str) -> None:
        self.inbox: Queue[IncomingMessage] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()
        # Requests that hang, and those of which a part is there.
        self.hanging: set[str] = set()
        self.gathered: dict[str, _Gathered] = {}
        self._stage = stage
        self._aborted = RecentIds()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            if message.request_id not in self._aborted:
                self._take(message)
            # As those of a stage's own, an idle one would keep the memory of its last payload.
            del message

    def stop(self) -> None:
        self.inbox.put(None)  # type: ignore[arg-type]

    def abort(self, request_id: str) -> None:
        self._aborted.add(request_id)
        self.hanging.discard(request_id)
        self.gathered.pop(request_id, None)

    def _take(self, message: IncomingMessage) -> None:
        try:
            if self._stage != "d":
                self.compute(message.data)
            elif not message.request_id.startswith(INSPECT):
                self._gather(message)
            elif message.type == "new_request":  # and not the end of a stream without chunks
                self.compute(message.data)
        except Aborted:
            pass  # nothing of it is waited for
        except (ArithmeticError, OSError, RequestError) as error:
            self._emit(message.request_id, "error", error)

    def _gather(self, message: IncomingMessage) -> None:
        request_id = message.request_id
        gathered = self.gathered.setdefault(request_id, _Gathered())
        if message.type == "stream_chunk":
            if message.data.chunk_id != len(gathered.parts):
                raise ArithmeticError(f"chunk {message.data.chunk_id} after {len(gathered.parts)} others")
            gathered.parts.append(message.data.data)
        elif message.type == "stream_done":
            gathered.is_whole = True
        else:
            gathered.payload = message.data
        if gathered.payload is not None and gathered.is_whole:
            self.gathered.pop(request_id, None)
            gathered.payload.data["parts"] = [_only_value(part) for part in gathered.parts]
            self.compute(gathered.payload)
        elif request_id in self._aborted:  # by the event loop's thread, meanwhile
            self.gathered.pop(request_id, None)

    def compute(self, payload: StagePayload) -> None:
        """Does the stage's work on a request; a point where a schedule's faults strike."""
        inputs, data = _inputs_of(payload), payload.data
        if INSPECT in inputs:
            result = {**(data if self._stage != "a" else {}), self._stage: held_here()}
            self._emit(payload.request_id, "result", _with(payload, result))
            return
        match inputs["faults"].get(self._stage):
            case "raise":
                raise ZeroDivisionError("its own")
            case "refuse":
                raise RequestError("too loud", param="volume")
            case "crash":
                raise SystemExit("the scheduler's own end")
            case "hang":
                self.hanging.add(payload.request_id)
                if payload.request_id in self._aborted:
                    self.hanging.discard(payload.request_id)
                return
        if self._stage == "a":
            blob = self._blob(payload.request_id, inputs)
            for number in range(PARTS):
                part = np.frombuffer(part_of(inputs, number), np.uint8)
                self._emit(payload.request_id, "stream", part)
            data = {"path": "a", "blob": blob}
        elif self._stage == "d":
            if payload.request.params.get("stream"):
                for piece in pieces_of(inputs["value"]):
                    self._emit(payload.request_id, "stream", {"text": piece})
            total = int(data["blob"].sum(dtype=np.int64))
            data = {"paths": data["paths"], "total": total, "parts": data["parts"], "text": text_of(inputs)}
            if "prompt" in payload.request.inputs:
                # A text is all that comes to the caller.
                if data != answer_to(inputs):
                    raise ArithmeticError(f"{data} is not {answer_to(inputs)}")
                data = {"text": data["text"]}
        else:
            data = {"path": data["path"] + self._stage, "blob": data["blob"]}
        self._emit(payload.request_id, "result", _with(payload, data))

    def _blob(self, request_id: str, inputs: Mapping[str, Any]) -> np.ndarray:
        """The request's medium without its last byte, or the same bytes if it has none."""
        size = inputs["size"]
        if "url" not in inputs:
            return np.full(size, inputs["value"] % 251, np.uint8)
        check = until_aborted(lambda: request_id in self._aborted)
        medium = media_bytes(inputs["url"], param="url", max_bytes=1 << 20, allowed_hosts=("*",), check=check)
        if medium != medium_of(inputs["value"], size):
            raise ArithmeticError(f"{len(medium)} bytes of a medium of {size + 1}, or wrong ones")
        return np.frombuffer(medium, np.uint8)[:size]

    def _emit(self, request_id: str, kind: Any, data: Any) -> None:
        self.outbox.put(OutgoingMessage(request_id, kind, data))


def _inputs_of(payload: StagePayload) -> Mapping[str, Any]:
    """The fields of an ``Ask``; over HTTP they come as a prompt."""
    inputs: Mapping[str, Any] = payload.request.inputs
    return json.loads(inputs["prompt"]) if "prompt" in inputs else inputs


def _with(payload: StagePayload, data: Any) -> StagePayload:
    return StagePayload(payload.request_id, payload.request, data)


def _only_value(part: np.ndarray) -> int:
    if int(part.min()) != int(part.max()):
        raise ArithmeticError("a chunk has bytes of another one")
    return int(part[0])


def scheduler(name: str) -> CampaignScheduler:
    return CampaignScheduler(name)


def merge(received: Mapping[str, StagePayload]) -> StagePayload:
    first, second = received["b"], received["c"]
    if INSPECT in _inputs_of(first):
        return _with(first, {**first.data, **second.data})
    if not np.array_equal(first.data["blob"], second.data["blob"]):
        raise ArithmeticError("b and c had different bytes")
    paths = {source: received[source].data["path"] for source in ("b", "c")}
    return _with(first, {"paths": paths, "blob": first.data["blob"]})


def held_here() -> dict[str, int]:
    """What this process holds. But for descriptors and what follows, it is zero at rest."""
    gc.collect()
    gc.unfreeze()  # What a worker has frozen is not among the collector's objects.
    objects = gc.get_objects()
    gc.freeze()
    stages = [each for each in objects if isinstance(each, Stage)]
    relays = [each for each in objects if isinstance(each, ShmRelay)]
    schedulers = [each for each in objects if isinstance(each, CampaignScheduler)]
    if not (len(stages) == len(schedulers) == 1 and relays):
        raise RuntimeError(
            f"{len(stages)} stages, {len(schedulers)} schedulers and {len(relays)} relays here"
        )
    usage = [relay.usage() for relay in relays]
    traces = traces_of(os.getpid())
    return {
        "requests": len(stages[0]._requests.active),
        "unsent": stages[0]._sender.backlog,
        "half received": len(getattr(stages[0].input_handler, "_received", ())),
        "gathered": len(schedulers[0].gathered),
        "hanging": len(schedulers[0].hanging),
        "held bytes": sum(each.get("relay_held_bytes", 0) for each in usage),
        "held slots": sum(each.get("relay_held_slots", 0) for each in usage),
        "descriptors": traces.descriptors,
        "memory files": traces.memfds,
        # Those of pools come when they are first needed, and are bounded.
        "threads": sum(not _OF_POOL.search(thread.name) for thread in threading.enumerate()),
        "children": len(psutil.Process().children()),
        "relays": len(relays),
    }
