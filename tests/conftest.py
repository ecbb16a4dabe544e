"""What tests of several folders share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from csm_oracle import CsmOracle
from fake_machine import FakeMachine, compile_driver
from higgs_oracle import HiggsOracle
from hypothesis import HealthCheck, settings
from qwen2_5_omni_oracle import OmniOracle
from qwen3_omni_oracle import Oracle
from tiny_checkpoints import TinyCheckpoint, make_checkpoint
from xdist.scheduler import LoadScopeScheduling

from sglang_omni.relay.shm.cuda_driver import cuda_driver
from sglang_omni.supervision.ports import bind

if TYPE_CHECKING:
    from sglang_omni._core import Switchboard

# How long an example takes says more about the machine than about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Folders whose tests share one server or fleet: all of such a folder runs in one process.
_SHARED = ("tests/e2e", "tests/integration/api")
# The longest first, so that no process is left alone with them at the end.
_ORDER = ("tests/e2e", "tests/integration", "tests/unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((i for i, folder in enumerate(_ORDER) if item.nodeid.startswith(folder)), len(_ORDER))

    items.sort(key=place)


class _ByFile(LoadScopeScheduling):
    """For ``pytest -n``: tests of a file stay together, as what they share is made once a file or folder."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in _SHARED if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    # The groups of pytest-xdist 3.8, by a mark, have no effect under pytest 9.2.
    return _ByFile(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder like ``tmp_path``, whose own path leaves room for what is in it: a Unix socket's may have 107
    bytes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def fault_board(tmp_path: Path) -> Iterator[Switchboard]:
    """A board of faults at ``tmp_path / "board"``, at which the points of this process look too."""
    from sglang_omni._core import Switchboard, switch_off_faults

    board = Switchboard.create(tmp_path / "board")
    board.switch_on()
    yield board
    board.disarm()
    switch_off_faults()


@pytest.fixture
def held_port() -> Iterator[int]:
    """A port that is reserved for the test. Nobody listens there before the test starts a listener."""
    with bind("127.0.0.1") as held:
        yield held.getsockname()[1]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyCheckpoint]:
    """``tiny_checkpoint(shape, seed=0)``: a random model of ``SHAPES``, made once a session."""

    import torch

    # These models are too small to share among threads, which would only wait for one another.
    torch.set_num_threads(1)

    @cache
    def make(shape: str = "llama", seed: int = 0) -> TinyCheckpoint:
        return make_checkpoint(tmp_path_factory.mktemp(f"{shape}-{seed}"), shape, seed)

    return make


@pytest.fixture(scope="session")
def qwen3_omni(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Oracle]:
    """``qwen3_omni(seed=0, shape="default")``: a tiny checkpoint and transformers' model of it, made once a
    session. See ``qwen3_omni_oracle``."""

    import torch

    torch.set_num_threads(1)

    @cache
    def make(seed: int = 0, shape: str = "default") -> Oracle:
        return Oracle.make(tmp_path_factory.mktemp(f"qwen3-omni-{shape}-{seed}"), seed=seed, shape=shape)

    return make


@pytest.fixture(scope="session")
def csm(tmp_path_factory: pytest.TempPathFactory) -> CsmOracle:
    """A tiny CSM checkpoint and transformers' model of it, made once a session."""

    import torch

    torch.set_num_threads(1)
    return CsmOracle.make(tmp_path_factory.mktemp("csm"))


@pytest.fixture(scope="session")
def higgs(tmp_path_factory: pytest.TempPathFactory) -> HiggsOracle:
    """A tiny Higgs Audio v2 checkpoint and transformers' model of it, made once a session."""

    import torch

    torch.set_num_threads(1)
    return HiggsOracle.make(tmp_path_factory.mktemp("higgs"))


@pytest.fixture(scope="session")
def qwen2_5_omni(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., OmniOracle]:
    """``qwen2_5_omni(seed=0, **shape)``: a tiny checkpoint and transformers' model of it, made once a
    session. See ``qwen2_5_omni_oracle``."""

    import torch

    torch.set_num_threads(1)

    @cache
    def make(seed: int = 0, **shape: int) -> OmniOracle:
        return OmniOracle.make(tmp_path_factory.mktemp(f"qwen2-5-omni-{seed}"), seed=seed, **shape)

    return make


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled ``libcuda.so.1`` of ``fake_machine``."""
    return compile_driver(tmp_path_factory.mktemp("fake-driver"))


@pytest.fixture
def fake_machine(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    """A machine without GPUs, until ``fake_machine.has(8)``."""
    with monkeypatch.context() as patched:
        yield FakeMachine(fake_driver, patched)
    cuda_driver.cache_clear()
