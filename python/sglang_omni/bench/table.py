"""A run's figures, as people read them."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_omni.bench.summary import PERCENTILES, Summary

_TITLE_WIDTH = 24
_WIDTH = 10


def table(summary: Summary, *, is_open: bool) -> Iterator[str]:
    """The lines to print.

    Args:
        is_open: True if requests came at a fixed rate.
    """
    per_s = summary.a_second
    yield _line(
        "requests",
        f"{summary.completed} answered, {summary.failed} failed, in {summary.duration:.2f} s",
        f"{per_s(summary.completed):.2f}/s",
    )
    if summary.prompt_tokens is not None:
        cached = f", {summary.cached_tokens} of them cached" if summary.cached_tokens is not None else ""
        yield _line("tokens in", f"{summary.prompt_tokens}{cached}", f"{per_s(summary.prompt_tokens):.0f}/s")
    if summary.output_tokens:
        how = " (pieces of text: the server told no usage)" if summary.counted else ""
        yield _line("tokens out", f"{summary.output_tokens}{how}", f"{per_s(summary.output_tokens):.0f}/s")
    if summary.sound_s:
        yield _line("sound", f"{summary.sound_s:.1f} s", f"{per_s(summary.sound_s):.2f} s/s")
        if summary.run_dry:
            yield _line("answers with gaps", f"{summary.run_dry} of {summary.completed}")
    if summary.good is not None:
        yield _line(
            "goodput",
            f"{summary.good} of {summary.completed + summary.failed} requests met every goal",
            f"{per_s(summary.good):.2f}/s",
        )
    for kind, count in summary.errors.items():
        yield _line("failed", f"{count} x {kind}: {summary.examples[kind]}")
    if summary.spreads:
        yield ""
        heads = ["mean", *(f"p{percent}" for percent in PERCENTILES), "max"]
        yield " " * _TITLE_WIDTH + "".join(head.rjust(_WIDTH) for head in heads)
        for measure, of in summary.spreads.items():
            values = [of.mean, *of.percentiles.values(), of.most]
            shown = "".join(_number(value).rjust(_WIDTH) for value in values)
            yield f"{measure.title:{_TITLE_WIDTH}}{shown} {measure.unit}".rstrip()
        yield ""
        yield _CLOCK[is_open]


_CLOCK = {
    True: "Latencies count from when a request was due, so waiting for a slow server is in them.",
    False: "Latencies count from when a request was sent: a slow server was asked less often. --request-rate "
    "keeps the\npace, and counts the waiting too.",
}


def _line(name: str, *cells: str) -> str:
    return f"{name:{_TITLE_WIDTH}}{', '.join(cells)}"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
