"""Errors if SGLang cannot be used as it is installed. No test here imports it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from sglang_omni import toolkit
from sglang_omni.cli.doctor.machine import _run
from sglang_omni.diagnosis import kernels_failure
from sglang_omni.engines.options import TensorParallel
from sglang_omni.engines.sglang import compat


@pytest.fixture(autouse=True)
def unprepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_prepared_for", None)


def test_a_missing_sglang_is_reported_as_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'sgl-omni\[sglang\]'"):
        compat.prepare("cpu")


def test_another_version_is_refused_and_the_supported_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.6.0")
    with pytest.raises(
        ImportError, match=r"of SGLang 0\.5\.23, but 0\.6\.0 is .*pip install 'sglang==0\.5\.23'"
    ):
        compat.prepare("cpu")


def test_a_gpu_needs_compilers_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    lack = toolkit.Lack("ninja", "not found", "pip install ninja")
    monkeypatch.setattr(toolkit, "lacks", lambda: [lack])
    monkeypatch.setattr(compat, "check_version", lambda: None)
    monkeypatch.setattr(compat, "_load_kernels", lambda kind: pytest.fail("kernels were loaded"))
    with pytest.raises(ImportError, match=r"cannot compile .*ninja: not found \(pip install ninja\)$"):
        compat.prepare("cuda:0")


def test_a_stages_event_loop_waits_shortly_for_sglangs_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("check_version", "_choose_cpu_engine"):
        monkeypatch.setattr(compat, part, lambda: None)
    monkeypatch.setattr(compat, "_load_kernels", lambda kind: None)
    monkeypatch.setenv("SGLANG_EXTERNAL_MODEL_PACKAGE", "")
    before = sys.getswitchinterval()
    try:
        compat.prepare("cpu")
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    finally:
        sys.setswitchinterval(before)


def test_one_kind_of_device_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_prepared_for", "cpu")
    compat.prepare("cpu")
    with pytest.raises(RuntimeError, match="give the stage a process of its own"):
        compat.prepare("cuda:0")


def test_one_group_of_ranks_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_groups", compat._Groups(TensorParallel(0, 2, 5000), {}))
    compat._check_groups(TensorParallel(0, 2, 5000))
    with pytest.raises(RuntimeError, match=r"rank 0 of 2 .*cannot be rank 0 of 1"):
        compat._check_groups(TensorParallel())


def test_kernels_that_load_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("sgl_kernel")
    monkeypatch.setitem(sys.modules, "sgl_kernel", real)
    compat._load_kernels("cpu")
    assert sys.modules["sgl_kernel"] is real


def test_kernels_that_do_not_load_are_replaced_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # None makes the import fail, like a library without its driver.
    monkeypatch.setitem(sys.modules, "sgl_kernel", None)
    with pytest.raises(ImportError, match="they need a CUDA driver"):
        compat._load_kernels("cuda")
    compat._load_kernels("cpu")
    import sgl_kernel

    with pytest.raises(RuntimeError, match=r"sgl_kernel\.verify_tree_greedy_cpu is not available"):
        sgl_kernel.verify_tree_greedy_cpu()


# As sglang-kernel 0.4.10 fails without a driver.
NO_DRIVER = """
[sgl_kernel] CRITICAL: Could not load any common_ops library!

Please ensure sgl_kernel is properly installed with:
pip install --upgrade sglang-kernel

Error details from previous import attempts:
- ImportError: libcuda.so.1: cannot open shared object file: No such file or directory
- ModuleNotFoundError: No module named 'common_ops'
"""


def test_why_kernels_do_not_load_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sgl_kernel.py").write_text(f"raise ImportError({NO_DRIVER!r})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "sgl_kernel", raising=False)
    reason = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
    with pytest.raises(ImportError, match=rf"^SGLang's .* \({reason}\): .* does without$"):
        compat._load_kernels("cuda")
    assert _run("import sgl_kernel", kernels_failure).text == reason


def test_engines_take_turns_in_the_order_of_asking() -> None:
    turns = compat._FifoLock()
    order: list[int] = []

    def work(number: int) -> None:
        with turns:
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    with turns:
        for number, thread in enumerate(threads):
            thread.start()
            # A thread waits once its turn is counted; the holder of the lock has turn 1.
            for _ in range(1000):
                if turns._last == number + 2:
                    break
                thread.join(timeout=0.01)
    for thread in threads:
        thread.join(timeout=10)
    assert order == [0, 1, 2, 3, 4]
