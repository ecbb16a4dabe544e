"""The short run of overload, on two replicas behind their router."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_overload import soak

pytestmark = pytest.mark.long


async def test_a_fleet_waits_and_refuses_in_its_router(tmp_path: Path) -> None:
    limits = ("--max-concurrent-requests", "4", "--queue-size", "8")
    status, text = await soak(tmp_path, "--times", "4", "--dp-size", "2", *limits)
    assert status == 0, text
    assert "The fleet holds 8 requests at once, more wait in its router" in text
    assert '"429": ' in text
