"""The seconds spent in each stage as HTTP's ``Server-Timing`` header, for answers whose body is a file."""

from __future__ import annotations

from collections.abc import Mapping


def server_timing(timings: Mapping[str, float]) -> str:
    """``{"speak": 0.25}`` as ``speak;dur=250.000``; the header's unit is the millisecond."""
    return ", ".join(f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in timings.items())


def read_server_timing(header: str | None) -> dict[str, float] | None:
    """What ``server_timing`` wrote; None without such a header. Metrics without a duration are left out."""
    if header is None:
        return None
    timings = {}
    for metric in header.split(","):
        stage, _, rest = metric.strip().partition(";")
        for parameter in rest.split(";"):
            name, _, value = parameter.strip().partition("=")
            if name == "dur":
                timings[stage] = float(value) / 1000
    return timings
