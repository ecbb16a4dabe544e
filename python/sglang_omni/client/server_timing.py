"""The seconds spent in each stage as HTTP's ``Server-Timing`` header, for answers whose body is a file."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_omni.proto import StageTime


def server_timing(timings: Mapping[str, StageTime]) -> str:
    """``{"speak": {"work": 0.25, "wait": 1}}`` as ``speak;dur=250.000;wait=1000.000``, in milliseconds.

    ``dur`` is the header's own parameter; the specification has readers ignore those that they do not know.
    """
    return ", ".join(
        f"{stage};dur={time['work'] * 1000:.3f};wait={time['wait'] * 1000:.3f}"
        for stage, time in timings.items()
    )


def read_server_timing(header: str | None) -> dict[str, StageTime] | None:
    """What ``server_timing`` wrote; None without such a header. Metrics without a duration are left out."""
    if header is None:
        return None
    timings: dict[str, StageTime] = {}
    for metric in header.split(","):
        stage, *parameters = (part.strip() for part in metric.split(";"))
        seconds = {}
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name in ("dur", "wait"):
                seconds[name] = float(value) / 1000
        if "dur" in seconds:
            timings[stage] = {"work": seconds["dur"], "wait": seconds.get("wait", 0.0)}
    return timings
