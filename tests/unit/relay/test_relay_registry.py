"""Relays by name, and which of a host's devices they are kept to."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.config import PipelineConfig, RelayConfig, StageConfig, validate_pipeline
from sglang_omni.config.schema.relay_backends import BUILT_IN, network_backends, relay_backend
from sglang_omni.relay import create_relay, register_relay
from sglang_omni.relay.base import BUILT_IN_MODULES
from sglang_omni.relay.bind_guard import device_of, own_addresses
from sglang_omni.relay.env_override import setting
from sglang_omni.relay.one_sided import nixl


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


@pytest.mark.parametrize("name", BUILT_IN)
def test_plans_know_of_a_backend_what_its_class_says(name: str) -> None:
    import_module(BUILT_IN_MODULES[name])
    assert relay_backend(name) == BUILT_IN[name]


def test_plans_know_what_a_registered_relay_says() -> None:
    @register_relay("test-near")
    class Near:
        crosses_hosts = False

        def __init__(self, engine_id: str, colour: str, rank: int) -> None: ...

    @register_relay("test-plain")
    class Plain:
        def __init__(self, **options: Any) -> None: ...

    assert relay_backend("test-near") == (False, False, {"colour"}, {"rank"})
    assert relay_backend("test-plain") == (True, False, None, None)
    with pytest.raises(ValueError, match="there is no relay backend 'nobodys'"):
        relay_backend("nobodys")
    assert {"test-plain", "nixl"} <= set(network_backends())
    assert not {"test-near", "shm"} & set(network_backends())


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown relay 'smh'; available: .*shm"):
        create_relay("smh")


@pytest.mark.parametrize(
    ("options", "text"), [({"device": "cuda:0"}, "for the CPU"), ({"credits": 0}, "at least 1")]
)
def test_shm_refuses_what_it_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        create_relay("shm", engine_id="e", **options)


def test_an_option_is_good_where_one_of_the_stages_relays_takes_it() -> None:
    options = {"host": "10.0.0.1", "protocol": "tcp"}
    sender = StageConfig(name="a", factory="p.f", process="a", next="b", edge_relays={"b": "mooncake"})
    reader = StageConfig(name="b", factory="p.f", process="b", terminal=True)
    reader.relay = RelayConfig(backend_options=options)
    validate_pipeline(PipelineConfig(model_path="m", stages=[sender, reader]))
    reader.relay = RelayConfig(backend_options={"colour": "red"})
    validate_pipeline(
        PipelineConfig(model_path="m", stages=[sender, reader], relay_backend=f"{__name__}.Coloured")
    )
    with pytest.raises(ValueError, match="takes 'colour'"):
        PipelineConfig(model_path="m", stages=[sender, reader])


class Coloured:
    def __init__(self, engine_id: str, colour: str) -> None:
        self.colour = colour

    async def put_async(
        self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None
    ) -> Any: ...

    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> Any: ...

    def cleanup(self, request_id: str) -> None: ...

    def close(self) -> None: ...


def test_a_class_that_is_no_relay_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(ValueError, match=r"'pathlib.Path' has no put_async, get_async, cleanup, close"):
        create_relay("pathlib.Path")


def test_a_relay_is_made_by_the_path_of_its_class() -> None:
    relay = create_relay(f"{__name__}.Coloured", engine_id="e", colour="red", credits=2)
    assert (type(relay), relay.colour) == (Coloured, "red")


def test_relays_are_imported_without_torch() -> None:
    code = (
        "import sys, sglang_omni.relay.shm, sglang_omni.pipeline.relay_io\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_device_of_an_address_is_the_one_that_has_it() -> None:
    assert device_of("localhost") == "lo"
    assert {str(address) for address in own_addresses()} >= {"127.0.0.1"}
    for address in own_addresses():
        assert Path("/sys/class/net", device_of(str(address))).exists()
    with pytest.raises(ValueError, match=r"'192\.0\.2\.77' is the address of no .* 127\.0\.0\.1 \(lo\)"):
        device_of("192.0.2.77")


def test_ucx_is_kept_to_the_hosts_device_and_to_rdma(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for port in ("mlx5_1/ports/1", "mlx5_0/ports/1", "mlx5_0/ports/2"):
        (tmp_path / port).mkdir(parents=True)
    monkeypatch.setattr(nixl, "_RDMA", tmp_path)
    monkeypatch.setattr(nixl, "device_of", {"10.0.0.3": "eth1", "127.0.0.1": "lo"}.__getitem__)
    assert nixl._devices("10.0.0.3") == "eth1,mlx5_0:1,mlx5_0:2,mlx5_1:1"
    assert nixl._devices("127.0.0.1") == nixl._devices("127.0.0.9") == "lo"


def test_an_address_of_another_host_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    with pytest.raises(ValueError, match=r"nixl .*10\.255\.255\.1.*Name an address of this host, or set UCX"):
        nixl.NixlRelay(host="10.255.255.1")


def test_a_setting_is_for_the_engine_and_for_nobody_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "of the user"):
        if before is not None:
            monkeypatch.setenv("UCX_NET_DEVICES", before)
        with setting("UCX_NET_DEVICES", "lo"):
            assert os.environ["UCX_NET_DEVICES"] == "lo"
        assert os.environ.get("UCX_NET_DEVICES") == before
