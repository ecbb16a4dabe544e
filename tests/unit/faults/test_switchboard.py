"""The board of faults as a campaign's driver and its processes see it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

from sglang_omni._core import Switchboard, fault_point, faults_on

LONG_MS = 600_000


def start(board: Path, script: str) -> subprocess.Popen[str]:
    """A process that looks at a board."""
    script = f"from sglang_omni._core import fault_point, faults_on\n{script}"
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"SGLANG_OMNI_FAULTS": str(board)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_without_a_board_points_are_nothing() -> None:
    assert not faults_on()
    assert fault_point("anything") is None


def test_the_nth_time_that_any_process_reaches_a_point_fires(tmp_path: Path) -> None:
    path = tmp_path / "board"
    board = Switchboard.create(path)
    board.arm("step", "kill", after=5)
    # Each goes on when the other has reached the point.
    script = "while input(): print(faults_on(), fault_point('step'), flush=True)"
    processes = [start(path, script), start(path, script)]
    try:
        for hit in range(4):
            process = processes[hit % 2]
            assert process.stdin is not None
            assert process.stdout is not None
            print("go", file=process.stdin, flush=True)
            assert process.stdout.readline() == "True None\n"
        killed, other = processes
        killed.communicate("go\n", timeout=60)
        assert killed.returncode == -signal.SIGKILL
        state = board.points()["step"]
        assert (state.hits, state.fired, state.fired_pid, state.armed) == (5, 1, killed.pid, False)
        assert other.communicate("go\n\n", timeout=60) == ("True None\n", "")
        assert board.points()["step"].hits == 6
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_only_the_process_in_question_is_stopped_until_it_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "board"
    board = Switchboard.create(path)
    process = start(path, "input(); print(fault_point('step'))")
    try:
        board.arm("step", "stop", pid=process.pid)
        other = start(path, "fault_point('step')")
        assert other.communicate(timeout=60) == ("", "")
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert board.points()["step"].fired_pid == process.pid
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60) == ("None\n", "")
    finally:
        process.kill()
        process.wait()


def test_a_process_without_its_board_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "none"
    process = start(path, "print('runs')")
    said = f"SGLANG_OMNI_FAULTS={path}: No such file or directory (os error 2)\n"
    assert process.communicate(timeout=60) == ("", said)
    assert process.returncode == 1


def test_a_hang_lets_other_threads_run_and_ends_when_disarmed(fault_board: Switchboard) -> None:
    fault_board.arm("step", "hang", argument=LONG_MS)
    hanging = threading.Thread(target=fault_point, args=("step",))
    hanging.start()
    wait_until(lambda: fault_board.points()["step"].fired, "it did not fire")
    hanging.join(0.05)
    assert hanging.is_alive()
    fault_board.disarm()
    hanging.join(60)
    assert not hanging.is_alive()


def test_errors_are_those_of_their_number(fault_board: Switchboard) -> None:
    fault_board.arm("step", "error", argument=errno.ECONNRESET, after=2, times=2)
    assert fault_point("step") is None
    for _ in range(2):
        with pytest.raises(ConnectionResetError, match="a fault at step") as raised:
            fault_point("step")
        assert raised.value.errno == errno.ECONNRESET
    assert fault_point("step") is None


@pytest.mark.parametrize("action", ["drop", "duplicate", "corrupt", "partial"])
def test_what_only_the_site_can_do_is_returned(fault_board: Switchboard, action: str) -> None:
    fault_board.arm("step", action)
    assert fault_point("step") == action
    assert fault_point("step") is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_leaves_a_child_that_keeps_files_open_and_no_zombie(fault_board: Switchboard) -> None:
    reader, writer = os.pipe()
    forks: list[int] = []
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    others = set(children.read_text().split())
    os.register_at_fork(after_in_parent=lambda: forks.append(1))
    fault_board.arm("step", "fork", argument=2000)
    assert fault_point("step") is None
    os.close(writer)
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert forks == [1]
    wait_until(lambda: set(children.read_text().split()) <= others, "the child is a zombie")


def test_calls_that_a_storm_interrupts_go_on(fault_board: Switchboard) -> None:
    fault_board.arm("step", "interrupts", argument=300)
    fault_point("step")
    reader, writer = os.pipe()
    writing = threading.Timer(0.2, os.write, (writer, b"x"))
    writing.start()
    assert os.read(reader, 1) == b"x"
    writing.join()
    os.close(reader)
    os.close(writer)


def test_orders_that_mean_nothing_are_refused(fault_board: Switchboard) -> None:
    for wrong, text in (
        ({"action": "explode"}, "is no action; there are delay, hang, "),
        ({"action": "kill", "after": 0}, "count from 1"),
        ({"action": "kill", "times": 0}, "count from 1"),
        ({"action": "delay"}, "nothing without an argument"),
    ):
        with pytest.raises(ValueError, match=text):
            fault_board.arm("step", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 to 48 bytes"):
        fault_board.arm("x" * 49, "kill")
    with pytest.raises(OverflowError):
        fault_board.arm("step", "delay", argument=-1)
    assert fault_board.points() == {}


def test_a_file_that_is_there_or_is_no_board_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "board"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        Switchboard.create(path)
    with pytest.raises(OSError, match="no board of this version"):
        Switchboard.open(path)
    assert path.read_text() == "mine"


def test_more_points_than_slots_are_an_error(fault_board: Switchboard) -> None:
    for number in range(256):
        fault_point(f"point.{number}")
    assert len(fault_board.points()) == 256
    fault_point("one more")
    with pytest.raises(OSError, match="points without a slot were reached 1 times"):
        fault_board.points()
