"""Whether an installed wheel works, on the machine that it is installed on: `python scripts/check_wheel.py`.

It needs nothing beside the wheel and what that installs. Wheels are checked with it where they are built,
which is not always where tests can run: in containers with musl, on other processors. It ends with 1 and a
traceback at the first thing that fails.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import files, version
from pathlib import Path

import numpy as np

import sglang_omni
from sglang_omni import client, serve  # noqa: F401 - that they import is what is checked
from sglang_omni.proto import codec

_READER = """
import json, sys
from sglang_omni._core import ShmLease
from sglang_omni.proto import codec
name, place = json.loads(sys.stdin.readline())
print(int(codec.unpack_payload(ShmLease(name, tuple(place)))["samples"].sum()))
"""
_PATIENCE_SECONDS = 60


def check_files() -> None:
    """The licences and the bill of materials came along, and the module is the one of the wheel."""
    assert sglang_omni.__version__ == version("sgl-omni")
    listed = {Path(str(path)).name for path in files("sgl-omni") or ()}
    licences = {"LICENSE", "NOTICE", "THIRD_PARTY_LICENSES.txt"}
    missing = {*licences, "third_party_crates.cdx.json", "py.typed"} - listed
    assert not missing, f"the wheel lacks {sorted(missing)}"


def check_codec() -> None:
    """What is packed comes out again."""
    sent = {"text": "hello", "samples": np.arange(1000, dtype=np.float32), "nested": [(1, None), b"bytes"]}
    back = codec.unpack(codec.pack(sent))
    assert back["text"] == sent["text"]
    assert back["nested"] == sent["nested"]
    assert np.array_equal(back["samples"], sent["samples"])


def check_shared_memory() -> None:
    """Another process reads a payload out of this one's memory, and returns it."""
    from sglang_omni._core import ShmArena

    arena = ShmArena(16 << 20)
    samples = np.ones(1_000_000, dtype=np.int64)
    place, _ = arena.put("edge", "request", codec.plan({"samples": samples}), _PATIENCE_SECONDS)
    read = subprocess.run(
        [sys.executable, "-c", _READER],
        input=json.dumps([arena.name, list(place)]),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
    )
    assert read.returncode == 0, read.stderr
    assert int(read.stdout) == samples.size
    assert arena.outstanding() == 0, "the reader has gone without returning its payload"


def check_router() -> None:
    """A router starts, says that it has no workers, and ends in order."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = [sys.executable, "-m", "sglang_omni.launch_router", "--port", str(port)]
    with subprocess.Popen(command) as router:
        try:
            assert _status(f"http://127.0.0.1:{port}/liveness") == 200
            assert _status(f"http://127.0.0.1:{port}/readiness") == 503
            router.send_signal(signal.SIGTERM)
            assert router.wait(_PATIENCE_SECONDS) == 0
        finally:
            router.kill()


def _status(url: str) -> int:
    """The status of an answer, as soon as there is one."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=_PATIENCE_SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def main() -> None:
    """Runs every check, and says so."""
    checks = [check_files, check_codec, check_router]
    if sys.platform == "linux":
        checks.append(check_shared_memory)
    for check in checks:
        check()
        print(f"ok {check.__name__.removeprefix('check_').replace('_', ' ')}")


if __name__ == "__main__":
    main()
