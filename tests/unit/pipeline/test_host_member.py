"""What a coordinator knows of a host, and of the processes there."""

from __future__ import annotations

import asyncio

import pytest

from sglang_omni.pipeline.processes.hosts import member as member_module
from sglang_omni.pipeline.processes.hosts.member import HostMember, RemoteProcess
from sglang_omni.pipeline.processes.hosts.messages import ProcessReport, ReportMessage
from sglang_omni.pipeline.processes.process import ProcessFailure


def joined() -> HostMember:
    member = HostMember("b")
    member.admit(b"session", "10.0.0.2", 0.0)
    member.joined.set()
    return member


def launched(member: HostMember, *names: str, number: int = 1) -> list[RemoteProcess]:
    return member.launch(number, list(names), lambda: None)


def report(name: str, number: int = 1, **fields: object) -> ReportMessage:
    return ReportMessage(processes=[ProcessReport(launch=number, name=name, pid=7, **fields)])


async def test_a_process_follows_its_hosts_reports() -> None:
    member = joined()
    (process,) = launched(member, "talk")
    assert [launch.processes for launch in member.wanted().launches] == [["talk"]]
    member.take(report("talk"))
    assert process.pid == 7
    assert not process.ready.done()
    member.take(report("talk", ready=True, endpoints={"talker": "tcp://10.0.0.2:1"}))
    await process.ready
    assert process.endpoints == {"talker": "tcp://10.0.0.2:1"}
    member.take(report("talk", ready=True, status=-9, exit_text="was killed by SIGKILL"))
    assert await process.exited == -9
    assert process.describe_exit() == "on host 'b' was killed by SIGKILL"
    assert not process.host_lost
    assert member.wanted().launches == []


async def test_why_a_process_did_not_start_is_what_its_host_says() -> None:
    member = joined()
    (process,) = launched(member, "talk")
    member.take(report("talk", status=1, exit_text="exited", failure="Process 'talk'\nTraceback: KeyError"))
    with pytest.raises(ProcessFailure, match=r"Host 'b': Process 'talk'\nTraceback: KeyError"):
        await process.ready


async def test_with_its_host_a_process_is_lost_and_not_dead_by_its_own_fault() -> None:
    member = joined()
    up, starting = launched(member, "up", "starting")
    member.take(report("up", ready=True))
    member.lose("host 'b' was not heard of for 10 s")
    assert up.host_lost
    assert up.exited.done()
    assert up.describe_exit() == "was lost: host 'b' was not heard of for 10 s"
    with pytest.raises(ProcessFailure, match="host 'b' was not heard of for 10 s"):
        await starting.ready
    assert not member.joined.is_set()
    assert member.wanted().launches == []


async def test_a_launch_on_a_host_that_is_not_there_is_lost_at_once() -> None:
    (process,) = launched(HostMember("b"), "talk")
    assert process.host_lost
    assert process.exited.done()


async def test_a_kill_is_repeated_until_the_host_says_that_it_is_done() -> None:
    member = joined()
    one, other = launched(member, "one", "other")
    one.kill()
    assert [launch.killed for launch in member.wanted().launches] == [["one"]]
    member.take(report("one", status=-9, exit_text="was killed by SIGKILL"))
    assert one.exited.done()
    assert not other.exited.done()
    assert [launch.processes for launch in member.wanted().launches] == [["one", "other"]]


async def test_a_kill_that_is_not_confirmed_counts_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "_CONFIRM_S", 0.01)
    (process,) = launched(joined(), "talk")
    process.kill()
    assert await asyncio.wait_for(process.exited, 60) == -9


async def test_reports_of_an_earlier_launch_are_not_taken_for_this_one() -> None:
    member = joined()
    (process,) = launched(member, "talk", number=2)
    member.take(report("talk", number=1, status=1, exit_text="exited with status 1"))
    assert not process.exited.done()
