"""Readers of the values of flags."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from sglang_omni.bench.judge.scenarios import SCENARIOS
from sglang_omni.bench.summary import GOALS
from sglang_omni.command_line import not_one_of


def rate(text: str) -> float:
    """For ``type=``: a number above 0, or ``inf``."""
    number = _number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; give requests a second, above 0, or inf")
    return number


def ratio(text: str) -> float:
    """For ``type=``: a number from 0 to 1."""
    number = _number(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def goal(text: str) -> tuple[str, float]:
    """For ``type=``: ``NAME:MOST``."""
    name, colon, most = text.partition(":")
    number = _number(most)
    if not colon or not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no goal; give a name and the most it may be: ttft:500")
    names = [measure.key for measure in GOALS]
    if name not in names:
        raise argparse.ArgumentTypeError(not_one_of(name, names))
    return name, number


def scenarios(text: str) -> tuple[str, ...]:
    """For ``type=``: names of scenarios with commas between them, each once."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in SCENARIOS:
            raise argparse.ArgumentTypeError(not_one_of(name, list(SCENARIOS)))
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} names a scenario twice")
    return names


def decibels(text: str) -> float:
    """For ``type=``: a number."""
    number = _number(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of decibels")
    return number


def extra_fields(text: str) -> dict[str, Any]:
    """For ``type=``: a JSON object."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as exc:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no JSON: {exc.msg}, at character {exc.pos + 1}"
        ) from exc
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no JSON object; give one like '{{\"temperature\": 0}}'"
        )
    return fields


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
