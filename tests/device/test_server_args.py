"""SGLang's settings as it resolves them on GPUs of several kinds: those that we rely on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from fake_cuda import needs_sglang

from sglang_omni.config.plan.memory_plan import MIB, PROMPT_GRAPH_TOKENS
from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.sglang import compat
from sglang_omni.engines.sglang.settings import pool_tokens, server_args, usable_tokens
from sglang_omni.models.decoder import memory

pytestmark = needs_sglang


class Kind(NamedTuple):
    """
    Attributes:
        mib: The memory that SGLang finds, in MiB.
        backend, page_size, fraction: What it chooses.
    """

    mib: int
    capability: tuple[int, int]
    backend: str
    page_size: int
    fraction: float


KINDS = {
    "A100": Kind(81_920, (8, 0), "flashinfer", 1, 0.875),
    "H100": Kind(81_559, (9, 0), "fa3", 1, 0.874),
    "B200": Kind(183_359, (10, 0), "trtllm_mha", 64, 0.944),
    "L4": Kind(23_034, (8, 9), "flashinfer", 1, 0.700),
    "RTX 4090": Kind(24_564, (8, 9), "flashinfer", 1, 0.719),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    fields = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return tmp_path


@pytest.fixture
def resolved(
    request: pytest.FixtureRequest, model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Kind, EngineOptions, Any]]:
    """The settings for the thinker's options on 80 GB, resolved on a GPU of the kind that is asked for."""
    compat.prepare("cpu")
    from sglang.srt.arg_groups import memory_hook
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.runtime_context import override_platform

    kind = KINDS[request.param]
    major, minor = kind.capability
    monkeypatch.setattr(memory_hook, "get_device_memory_capacity", lambda device=None: kind.mib)
    options = EngineOptions(
        dtype="bfloat16",
        device="cuda:0",
        max_running_requests=64,
        max_total_tokens=30_144,
        chunked_prefill_size=4096,
    )
    with override_platform(
        is_cuda=True,
        is_sm90=major == 9,
        is_sm100=major == 10,
        is_sm100_or_sm110=major in (10, 11),
        is_sm120=major == 12,
        is_blackwell=major >= 10,
        is_hopper_with_cuda_12_3=major == 9,
        has_flashinfer=True,
        device_sm=10 * major + minor,
        device_capability=kind.capability,
    ):
        args = server_args(model, options, "auto")
        args.resolve_once()
        yield kind, options, resolving_view(args)


@pytest.mark.parametrize("resolved", KINDS, indirect=True)
def test_backend_and_page_are_those_of_the_hardware(resolved: tuple[Kind, EngineOptions, Any]) -> None:
    kind, options, args = resolved
    assert (args.attention_backend, args.page_size) == (kind.backend, kind.page_size)
    assert args.chunked_prefill_size == options.chunked_prefill_size
    assert args.max_running_requests == options.max_running_requests
    # Steps end at pages.
    assert args.chunked_prefill_size % args.page_size == 0
    assert not args.enable_memory_saver


@pytest.mark.parametrize("resolved", KINDS, indirect=True)
def test_a_pool_of_whole_pages_admits_what_was_asked_for(resolved: tuple[Kind, EngineOptions, Any]) -> None:
    _, options, args = resolved

    # With the page that SGLang resolved, its own limit would hold fewer tokens than the option on a B200.
    size = pool_tokens(options, args.page_size)
    assert size % args.page_size == 0
    pool = SimpleNamespace(size=size, page_size=args.page_size)
    assert options.max_total_tokens <= usable_tokens(pool) < options.max_total_tokens + args.page_size


@pytest.mark.parametrize("resolved", ["H100", "L4"], indirect=True)
def test_graphs_take_no_more_than_is_counted(
    model: Path, resolved: tuple[Kind, EngineOptions, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against SGLang's own count of what they take beside activations."""
    from sglang.srt.arg_groups import cuda_graph_hook
    from sglang.srt.arg_groups.memory_hook import reserve_for_graph_mb
    from sglang.srt.arg_groups.overrides import resolving_view

    # By default on a GPU alone.
    default = cuda_graph_hook.default_cuda_graph_config

    def breakable() -> Any:
        config = default()
        config.prefill.backend = "breakable"
        return config

    monkeypatch.setattr(cuda_graph_hook, "default_cuda_graph_config", breakable)
    _, options, _ = resolved

    def counted(**changes: Any) -> tuple[Any, float]:
        args = server_args(model, replace(options, **changes), "auto")
        args.resolve_once()
        return resolving_view(args).cuda_graph_config, reserve_for_graph_mb(args) * MIB

    graphs, with_prompts = counted(chunked_prefill_size=8192)
    assert (graphs.decode.max_bs, graphs.prefill.max_bs) == (64, PROMPT_GRAPH_TOKENS)
    assert with_prompts <= memory._PROMPT_GRAPHS + 64 * memory._GRAPHS_PER_REQUEST
    assert len(graphs.prefill.bs) * 8 * MIB == memory._PROMPT_GRAPHS
    graphs, without = counted(prefill_cuda_graph=False)
    assert graphs.prefill.backend == "disabled"
    assert without <= 64 * memory._GRAPHS_PER_REQUEST
    graphs, _ = counted(chunked_prefill_size=-1)
    assert graphs.prefill.max_bs == PROMPT_GRAPH_TOKENS
    graphs, _ = counted(chunked_prefill_size=512)
    assert graphs.prefill.max_bs == 512


@pytest.mark.parametrize("resolved", KINDS, indirect=True)
def test_sglangs_own_fraction_is_not_what_an_omni_model_needs(
    resolved: tuple[Kind, EngineOptions, Any],
) -> None:
    """Which is why the pool is counted here, and the fraction passed on only if it is given."""
    kind, _, args = resolved
    assert args.mem_fraction_static == pytest.approx(kind.fraction, abs=0.001)


@pytest.mark.parametrize("resolved", ["H100"], indirect=True)
def test_a_given_fraction_stays(model: Path, resolved: tuple[Kind, EngineOptions, Any]) -> None:
    from sglang.srt.arg_groups.overrides import resolving_view

    _, options, _ = resolved
    args = server_args(model, replace(options, mem_fraction_static=0.6), "auto")
    args.resolve_once()
    assert resolving_view(args).mem_fraction_static == 0.6
