"""What a control plane or relay lacks is completed where a stage is given it; what it has is used."""

from __future__ import annotations

from typing import Any

import pytest
from relay_stand_ins import PlainRelay
from stage_harness import RecordedControlPlane
from waiting import rounds, until

from sglang_omni.compat.control_plane import as_stage_link
from sglang_omni.compat.plain_relay import as_relay
from sglang_omni.pipeline.transport.control_plane import StageControlPlane
from sglang_omni.proto import ProgressMessage, ShutdownMessage
from sglang_omni.relay.base import create_relay


def test_our_own_parts_are_taken_as_they_are() -> None:
    control_plane = StageControlPlane("s", "ipc:///s", "ipc:///completion", "ipc:///abort")
    assert as_stage_link(control_plane) is control_plane
    relay = create_relay("shm", engine_id="s")
    assert as_relay(relay) is relay
    relay.close()


async def test_a_minimal_control_plane_delivers_until_it_is_full_and_again_after_resume() -> None:
    minimal = RecordedControlPlane()
    link = as_stage_link(minimal)
    taken: list[Any] = []
    is_full = True

    def take(message: Any) -> bool:
        taken.append(message)
        return not is_full

    for _ in range(3):
        minimal.work.put_nowait(ShutdownMessage())
    receiving = link.deliver_to(take)
    assert receiving is not None
    await until(lambda: len(taken) == 1)
    await rounds()
    assert len(taken) == 1
    is_full = False
    link.resume()
    await until(lambda: len(taken) == 3)
    receiving.cancel()


async def test_a_minimal_control_plane_carries_no_reports_and_reaches_no_other_host() -> None:
    link = as_stage_link(RecordedControlPlane())
    assert link.tcp_endpoint is None
    link.move("t", "tcp://elsewhere")
    link.on_lost(lambda target, message, reason: None)
    await link.send_progress(ProgressMessage("s", [], []))
    assert link.recv_endpoint == "test://stage"


async def test_optional_methods_of_a_control_plane_are_used() -> None:
    reports: list[Any] = []

    class Reporting(RecordedControlPlane):
        tcp_endpoint = "tcp://here"

        async def send_progress(self, message: ProgressMessage) -> None:
            reports.append(message)

    link = as_stage_link(Reporting())
    message = ProgressMessage("s", [], [])
    await link.send_progress(message)
    assert reports == [message]
    assert link.tcp_endpoint == "tcp://here"


def test_a_relay_of_another_class_keeps_the_abilities_it_declares() -> None:
    plain: Any = as_relay(PlainRelay())
    assert (plain.inline_limit, plain.packs, plain.fans_out, plain.lends, plain.trusted) == (0, *[False] * 4)
    assert (plain.device, plain.usage()) == ("cpu", {})
    assert as_relay(plain) is plain

    class Declares(PlainRelay):
        inline_limit = 7
        lends = True

        def usage(self) -> dict[str, float]:
            return {"relay_held_slots": 1}

    able: Any = as_relay(Declares())
    assert (able.inline_limit, able.lends, able.packs) == (7, True, False)
    assert able.usage() == {"relay_held_slots": 1}
    with pytest.raises(AttributeError, match="put_payload"):
        able.put_payload  # noqa: B018
