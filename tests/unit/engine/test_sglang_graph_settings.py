"""The CUDA graphs that SGLang is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.sglang import compat


class OurLoader:
    """Stands for the loader of a decoder of ours."""


@pytest.mark.parametrize(
    ("device", "cuda_graph", "load_format", "expected"),
    [
        ("cuda:0", True, "auto", ("full", "breakable")),
        ("cuda:1", True, OurLoader, ("full", "disabled")),
        ("cuda:0", False, "auto", ("disabled", "disabled")),
        ("cuda:0", False, OurLoader, ("disabled", "disabled")),
        ("cpu", True, "auto", ("disabled", "disabled")),
    ],
)
def test_what_is_captured(
    tiny_checkpoint: Callable[..., TinyCheckpoint],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    cuda_graph: bool,
    load_format: object,
    expected: tuple[str, str],
) -> None:
    compat.prepare("cpu")
    from sglang.srt.arg_groups.cuda_graph_hook import parse_cuda_graph_config
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.model_executor import cuda_graph_config

    from sglang_omni.engines.sglang.settings import server_args

    # As on a machine with a GPU.
    monkeypatch.setattr(cuda_graph_config, "default_prefill_backend", lambda: "breakable")
    options = EngineOptions(device=device, cuda_graph=cuda_graph, max_running_requests=24)
    args = server_args(tiny_checkpoint("llama").path, options, load_format)
    parse_cuda_graph_config(args)

    graphs = resolving_view(args).cuda_graph_config
    assert (graphs.decode.backend, graphs.prefill.backend) == expected
    if device != "cpu":
        # Every batch that runs has a graph.
        assert graphs.decode.max_bs == 24
