"""Which of a host's devices a relay is kept to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_omni.relay.bind_guard import device_of, own_addresses
from sglang_omni.relay.env_override import setting
from sglang_omni.relay.one_sided import nixl


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
