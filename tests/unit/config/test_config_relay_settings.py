"""The settings of a stage's relays: from the config to the relay of each edge, and which are refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from edge_pipelines import RANKED, edges_of, pipeline, stage

from sglang_omni.config import ConfigError, PipelineConfig, RelayConfig, stage_instances, validate_config
from sglang_omni.config.schema.load import config_to_dict
from sglang_omni.pipeline.processes.plan import plan_stage_launch


def relays_of(config: PipelineConfig, name: str, **options: Any) -> dict[str, dict[str, Any]]:
    (instance,) = [it for it in stage_instances(config) if it.name == name]
    endpoints = dict.fromkeys(["completion", "abort", *(f"stage_{s.name}" for s in config.stages)], "")
    return plan_stage_launch(instance, config, endpoints, edges_of(config), **options).relay_configs


def test_each_relay_of_a_stage_has_the_stages_options() -> None:
    given_options = RelayConfig(
        slot_size_mb=8, credits=3, backend_options={"timeout_s": 5.0, "protocol": "rdma"}
    )
    config = pipeline(
        stage("a", "b", "c", relay=given_options, edge_relays={"c": "mooncake"}), stage("b"), stage("c")
    )
    relays = relays_of(config, "a")
    assert relays.keys() == {"shm", "mooncake"}
    for options in relays.values():
        assert (options["slot_size_mb"], options["credits"], options["timeout_s"]) == (8, 3, 5.0)
    assert relays_of(config, "b").keys() == {"shm"}


def test_shared_memory_stays_on_the_cpu_beside_a_relay_of_the_gpu() -> None:
    config = pipeline(stage("a", "b", "c", gpu=1, edge_relays={"c": "nccl"}), stage("b"), stage("c"))
    devices = {name: options["device"] for name, options in relays_of(config, "a").items()}
    assert devices == {"shm": "cpu", "nccl": "cuda:0"}
    config.stages[0].relay = RelayConfig(device="cuda:1")
    devices = {name: options["device"] for name, options in relays_of(config, "a").items()}
    assert devices == {"shm": "cpu", "nccl": "cuda:1"}


def test_the_hosts_address_is_where_networked_relays_are_reached() -> None:
    config = pipeline(stage("a", "b", node="x"), stage("b", node="y"))
    assert "host" not in relays_of(config, "a")["nixl"]
    assert relays_of(config, "a", host_address="10.0.0.1")["nixl"]["host"] == "10.0.0.1"
    config.stages[0].relay = RelayConfig(backend_options={"host": "10.9.0.1"})
    assert relays_of(config, "a", host_address="10.0.0.1")["nixl"]["host"] == "10.9.0.1"


def test_a_relays_device_follows_the_placement_unless_it_was_set() -> None:
    config = pipeline(stage("a", "b", gpu=1), stage("b"), relay_backend="nccl")
    for relay, device in [
        (None, "cuda:0"),
        (RelayConfig(credits=4), "cuda:0"),
        (RelayConfig(credits=4, device="cpu"), "cpu"),
        (RelayConfig(device="cuda:2"), "cuda:2"),
    ]:
        config.stages[0].relay = relay
        assert relays_of(config, "a")["nccl"]["device"] == device
        # It is still so in another process, and after a file.
        again = PipelineConfig.from_dict(config_to_dict(pickle.loads(pickle.dumps(config))))
        assert relays_of(again, "a")["nccl"]["device"] == device
        dumped = PipelineConfig.from_dict(config.model_dump(mode="json"))
        assert relays_of(dumped, "a")["nccl"]["device"] == device
    assert RelayConfig().device == "cpu"


def test_shared_memory_takes_no_device_from_a_stage_that_says_nothing_of_it() -> None:
    config = pipeline(stage("a", "b", gpu=1, relay=RelayConfig(credits=4)), stage("b"))
    assert relays_of(config, "a")["shm"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("backend", "relay", "text"),
    [
        ("shm", {"rank": 1}, r"stage 'a': relay.rank: none of the stage's relays, shm, reads it; leave"),
        ("nccl", {"world_size": 2}, r"relay.world_size: none of the stage's relays, nccl, reads it"),
        ("nixl", {"device": "cuda:0"}, r"relay.device: none of .*, nixl, reads it; leave it out \(nccl and "),
        ("mooncake", {"device": "cuda"}, r"relay.device: none of the stage's relays, mooncake, reads it"),
        ("shm", {"device": "cuda:1"}, r"relay.device: none of the stage's relays, shm, reads it"),
        (RANKED, {"credits": 3}, r"relay.credits: none of .*Ranked, reads it; .*shm and nixl"),
    ],
)
def test_a_setting_that_no_relay_of_the_stage_reads_is_refused(
    backend: str, relay: dict[str, Any], text: str
) -> None:
    config = pipeline(stage("a", "b", relay=RelayConfig(**relay)), stage("b"), relay_backend=backend)
    with pytest.raises(ConfigError, match=text):
        validate_config(config)


@pytest.mark.parametrize(
    ("backend", "relay"),
    [
        ("nixl", {"device": "cpu", "credits": 1, "rank": None}),
        ("nccl", {"device": "cuda:1", "slot_size_mb": 8}),
        (RANKED, {"rank": 3, "world_size": 7, "device": "cuda"}),
    ],
)
def test_a_setting_that_a_relay_of_the_stage_reads_is_good(backend: str, relay: dict[str, Any]) -> None:
    config = pipeline(stage("a", "b", relay=RelayConfig(**relay)), stage("b"), relay_backend=backend)
    validate_config(config)
    given = relays_of(config, "a")[backend]
    assert {name: given[name] for name in relay if relay[name] is not None} == {
        name: value for name, value in relay.items() if value is not None
    }


def test_a_setting_counts_for_the_relays_that_the_stages_edges_have() -> None:
    near = pipeline(stage("a", "b", relay=RelayConfig(rank=1)), stage("b", process="a"))
    validate_config(near)  # It has no relay at all.
    config = pipeline(stage("a", "b", "c", edge_relays={"c": "nccl"}), stage("b"), stage("c"))
    config.stages[2].relay = RelayConfig(device="cuda:1")  # What it receives comes over nccl.
    validate_config(config)
    config.stages[1].relay = RelayConfig(device="cuda:1")
    with pytest.raises(ConfigError, match=r"stage 'b': relay.device: none of the stage's relays, shm, reads"):
        validate_config(config)


def test_only_the_first_rank_has_relays() -> None:
    config = pipeline(stage("a", "b", tp_size=2), stage("b"))
    assert relays_of(config, "a", tp_rank=0).keys() == {"shm"}
    assert relays_of(config, "a", tp_rank=1) == {}
