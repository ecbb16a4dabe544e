"""What goes where: the items that a result or a chunk becomes, and their targets. Nothing is sent here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_omni.config.plan.instances import instance_name
from sglang_omni.config.schema import StageConfig
from sglang_omni.pipeline.stage.edges.coordinator import COORDINATOR
from sglang_omni.pipeline.stage.edges.edge import End, Payload, StreamChunk
from sglang_omni.pipeline.stage.edges.fan_out import FanOut
from sglang_omni.pipeline.stage.edges.isolation import isolated_targets
from sglang_omni.pipeline.stage.wiring import GetNextFn, Wiring
from sglang_omni.proto import Replicas, StagePayload
from sglang_omni.relay.base import Relay
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.playback import num_samples


class RoutedResult(NamedTuple):
    """What a result becomes.

    Attributes:
        ends: The ends of the request's streams, with their targets. They are sent first.
        payloads: What the next stages get.
        answer: What the coordinator gets, which completes the request; None if stages follow.
    """

    ends: list[tuple[str, End]]
    payloads: list[tuple[str, Payload]]
    answer: Payload | None


class Routing:
    """The rules of one stage. Targets are instances, or ``COORDINATOR``.

    Args:
        relay_to: The relay that carries items to an instance in another process; raises RuntimeError if there
            is none. Targets that get one object over one relay share its bytes.
    """

    def __init__(self, wiring: Wiring, relay_to: Callable[[str], Relay]) -> None:
        self._wiring = wiring
        self._relay_to = relay_to

    def result(self, request_id: str, output: Any, replicas: Replicas, samples_sent: int = 0) -> RoutedResult:
        """What the scheduler's result becomes.

        Args:
            replicas: Which replica of each replicated stage serves the request.
            samples_sent: How many samples of sound the caller has got in chunks.

        Raises:
            ValueError: A hook names what is not in the static topology.
            TypeError: The output cannot go to another stage.
            Exception: What a hook raised.
        """
        wiring = self._wiring
        source = wiring.instance
        returned = wiring.get_next(request_id, output)
        ends = [
            (target, End(request_id, source, None, replicas))
            for target in _instances(self._ended_streams(request_id, output), replicas)
        ]
        if returned is None:
            result = output
            if isinstance(output, StagePayload):
                streams = output.request.params.get("stream")
                result = without_sent_sound(output.data, samples_sent) if streams else output.data
            return RoutedResult(ends, [], Payload(request_id, source, result))
        targets = checked_targets(returned, wiring.topology, stage=wiring.stage_name, hook="get_next")
        data = list(
            zip(_instances(targets, replicas), [self._projected(output, t) for t in targets], strict=True)
        )
        own = wiring.same_process_targets
        local = isolated_targets(data, output, own) if own else ()
        shared = self._shared([sent for sent in data if sent[0] not in local])
        payloads = [
            (target, Payload(request_id, source, None, replicas, shared[target]))
            if target in shared
            else (target, Payload(request_id, source, payload, replicas, is_own=target in local))
            for target, payload in data
        ]
        return RoutedResult(ends, payloads, None)

    def chunk(
        self, out: OutgoingMessage, replicas: Replicas, sent: Mapping[str, int]
    ) -> list[tuple[str, StreamChunk]]:
        """What a chunk becomes: one for its target, for all stream targets, or for the caller.

        Args:
            replicas: As for ``result``.
            sent: How many chunks of the request each target has got.

        Raises:
            ValueError: The target is not one of the stage's stream targets.
        """
        source, request_id = self._wiring.instance, out.request_id
        names: Sequence[str] = self._wiring.stream_targets
        if out.target == COORDINATOR or not (out.target or names):  # as most are
            count = sent.get(COORDINATOR, 0)
            chunk = StreamChunk(request_id, source, count, out.data, out.metadata, replicas)
            return [(COORDINATOR, chunk)]
        if out.target is not None:
            if out.target not in names:
                raise ValueError(
                    f"stream target {out.target!r} is outside the static topology: stream_to is {list(names)}"
                )
            names = [out.target]
        targets = _instances(names, replicas)
        own = self._wiring.same_process_targets
        shared = self._shared([(t, out.data) for t in targets if t != COORDINATOR and t not in own])
        chunks = []
        for target in targets:
            fan_out = shared.get(target)
            count = sent.get(target, 0)
            chunk = StreamChunk(request_id, source, count, out.data, out.metadata, replicas, fan_out)
            chunks.append((target, chunk))
        return chunks

    def _ended_streams(self, request_id: str, output: Any) -> Sequence[str]:
        wiring = self._wiring
        if wiring.get_stream_done_targets is None:
            return wiring.stream_targets
        returned = wiring.get_stream_done_targets(request_id, output)
        if returned is None:
            return []
        return checked_targets(
            returned, wiring.stream_targets, stage=wiring.stage_name, hook="stream_done_to_fn", empty_ok=True
        )

    def _projected(self, output: Any, target: str) -> StagePayload:
        project = self._wiring.project_payload.get(target)
        payload = project(output) if project is not None else output
        if not isinstance(payload, StagePayload):
            source = "its scheduler" if project is None else "project_payload"
            raise TypeError(
                f"stage {self._wiring.stage_name!r} cannot send to {target!r}: {source} returned a "
                f"{type(payload).__name__}, expected a StagePayload"
            )
        return payload

    def _shared(self, sent: Sequence[tuple[str, Any]]) -> dict[str, FanOut]:
        """By target, what writes an object that others get through the same relay."""
        if len(sent) < 2:
            return {}
        ways = [(id(obj), id(self._relay_to(target))) for target, obj in sent]
        uses = Counter(ways)
        fan_outs = {
            way: FanOut(self._relay_to(target), obj)
            for way, (target, obj) in zip(ways, sent, strict=True)
            if uses[way] > 1
        }
        return {target: fan_outs[way] for way, (target, _) in zip(ways, sent, strict=True) if way in fan_outs}


def without_sent_sound(result: Any, samples_sent: int) -> Any:
    """A result without its sound if the caller, who streams, has got all of it: it would be sent twice."""
    if not samples_sent or num_samples(result) != samples_sent:
        return result
    return {"modality": "audio", **result, "audio_data": None}


def next_stages(stage: StageConfig, load: Callable[..., Callable[..., Any]]) -> GetNextFn:
    """The hook of a stage that names its next stages.

    Args:
        load: ``load(path, field=name)`` imports a function of the configuration.
    """
    if stage.get_next is not None:
        return load(stage.get_next, field="get_next")
    if stage.route_fn is not None:
        route = load(stage.route_fn, field="route_fn")
        return lambda request_id, output: checked_targets(
            route(request_id, output), stage.next_stages, stage=stage.name, hook="route_fn"
        )
    following = None if stage.terminal else stage.next
    return lambda request_id, output: following


def checked_targets(
    returned: Any, allowed: Collection[str], *, stage: str, hook: str, empty_ok: bool = False
) -> list[str]:
    """The stage names a routing hook returned, in order and each once.

    Args:
        returned: A name, names, or None for no name.
        allowed: The names that the pipeline's configuration allows.
        stage: The stage the hook belongs to.
        hook: The hook's name, for the error.
        empty_ok: True if the hook may return no name at all.

    Raises:
        ValueError: ``returned`` is not a name or names, or not among ``allowed``.
    """
    names = [returned] if isinstance(returned, str) else () if returned is None else returned
    if not isinstance(names, Iterable) or isinstance(names, (bytes, dict)):
        raise ValueError(f"stage {stage!r}: {hook} must return a stage name or names, got {returned!r}")
    targets = list(dict.fromkeys(names))
    if not targets and not empty_ok:
        raise ValueError(
            f"stage {stage!r}: {hook} returned no targets; it must choose from {sorted(allowed)}, "
            "and a stage that ends requests is terminal"
        )
    unknown = [name for name in targets if name not in allowed]
    if unknown:
        raise ValueError(
            f"stage {stage!r}: {hook} returned targets outside the static topology: {unknown}; "
            f"allowed: {sorted(allowed)}"
        )
    return targets


def _instances(targets: Sequence[str], replicas: Replicas) -> Sequence[str]:
    """The instance of each target that serves a request with these replicas."""
    if not replicas:
        return targets
    return [instance_name(target, replicas.get(target)) for target in targets]
