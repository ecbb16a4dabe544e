"""What is said of processes that have ended."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import traceback

import psutil
import pytest

from sglang_omni.pipeline.processes.process import ChildProcess, ended_early, exited_with


def raised(error: BaseException) -> str:
    with pytest.raises(type(error)) as caught:
        raise error
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError(3), "KeyError: 3"),
        (RuntimeError("Error in loading:\n\tsize mismatch\n    and more"), None),
        (SystemExit(), "SystemExit"),
    ],
)
def test_the_error_is_the_tracebacks_end(error, text):
    said = exited_with(1, raised(error))
    assert said.startswith(f"exited with status 1: {text or f'{type(error).__name__}: {error}'}")


def test_the_error_of_a_chain_is_its_last():
    try:
        try:
            raise KeyError("first")
        except KeyError as exc:
            raise ValueError("second") from exc
    except ValueError:
        said = exited_with(1, traceback.format_exc())
    assert said == "exited with status 1: ValueError: second"


def test_a_traceback_that_is_cut_off_or_none_is_no_error():
    assert exited_with(1, "Error: no frame") == "exited with status 1: Error: no frame"
    assert exited_with(3, None) == "exited with status 3"


def test_reason_is_the_text_without_the_traceback():
    frames = raised(OSError("gone"))
    failure = ended_early("a", exited_with(1, frames), frames)
    assert failure.reason == "Process 'a' exited with status 1: OSError: gone"
    assert str(failure) == f"{failure.reason}\n{frames.rstrip()}"
    assert str(ended_early("a", "was killed", None)) == "Process 'a' was killed before it was ready"


def open_files() -> dict[str, str]:
    """What this process has open but for sockets, which threads that other tests have left may open."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return {number: what for number, what in found.items() if not what.startswith(("socket:", "/proc/"))}


async def test_a_start_without_descriptors_leaves_nothing():
    """At whichever of its steps there are none left."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    # What earlier tests have left may be closed meanwhile, but nothing may be opened.
    before, children = open_files(), set(psutil.Process().children())
    failed = 0
    process = None
    while process is None:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (probe + failed, limits[1]))
            process = ChildProcess("a", None, dict(os.environ))
        except OSError as exc:
            failed += exc.errno == errno.EMFILE
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        if process is None:
            assert open_files().items() <= before.items(), failed
            assert set(psutil.Process().children()) == children, failed
    assert failed > 4  # a file, a pipe, what it takes to start a program, and to watch it
    process.kill()
    await process.exited
    assert open_files().items() <= before.items()
