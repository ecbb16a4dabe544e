"""Load and caches of coordinators that have all of the methods, some, or are out of reach."""

from __future__ import annotations

import pytest

from sglang_omni.client import Client, RequestError
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.serve.coordinator import admin_coordinator


def test_our_own_is_asked_directly() -> None:
    coordinator = Coordinator.__new__(Coordinator)
    assert admin_coordinator(Client(coordinator)) is coordinator


async def test_one_that_only_serves_has_no_load_and_no_cache() -> None:
    class Plain:
        submit = stream = None

        def stage_load(self) -> dict[str, int]:
            return {"thinker": 2}

    admin = admin_coordinator(Client(Plain()))
    assert (admin.get_load(), admin.stage_load(), admin.stage_stats()) == ({}, {"thinker": 2}, {})
    with pytest.raises(RequestError, match="no cache to flush") as error:
        await admin.flush_cache()
    assert error.value.status == 404


async def test_one_behind_a_url_is_asked_by_its_own_server() -> None:
    admin = admin_coordinator(Client(base_url="http://127.0.0.1:9"))
    for read in (admin.get_load, admin.stage_load, admin.stage_stats):
        with pytest.raises(NotImplementedError, match="see /get_load"):
            read()
    with pytest.raises(NotImplementedError, match="see /flush_cache"):
        await admin.flush_cache()
