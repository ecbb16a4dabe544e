"""Relays by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from sglang_omni.relay import create_relay, register_relay


def test_options_a_backend_does_not_take_are_dropped() -> None:
    @register_relay("test-narrow")
    class Narrow:
        def __init__(self, engine_id: str) -> None:
            self.engine_id = engine_id

    @register_relay("test-wide")
    class Wide:
        def __init__(self, **options: Any) -> None:
            self.options = options

    options = {"engine_id": "e", "slot_size_mb": 1, "credits": 2, "device": "cpu", "rank": 0}
    assert create_relay("test-narrow", **options).engine_id == "e"
    assert create_relay("test-wide", **options).options == options


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown relay 'smh'; available: .*shm"):
        create_relay("smh")


@pytest.mark.parametrize(
    ("options", "text"), [({"device": "cuda:0"}, "for the CPU"), ({"credits": 0}, "at least 1")]
)
def test_shm_refuses_what_it_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        create_relay("shm", engine_id="e", **options)


def test_relays_are_imported_without_torch() -> None:
    code = (
        "import sys, sglang_omni.relay.shm, sglang_omni.pipeline.relay_io; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
