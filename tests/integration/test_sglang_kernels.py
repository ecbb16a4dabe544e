"""SGLang's kernels of a step are compiled and loaded, for an H100 and without one.

In an environment with NVIDIA's compiler: `make test-kernels` runs this in that of `make build-gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_omni import toolkit

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(toolkit._wheels() is None, reason="no nvcc here: make test-kernels installs it"),
]

# As a stage starts, but for the GPU. SGLang's kernels that are compiled ahead need its driver to load.
STAGE = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
from sglang_omni import toolkit
from sglang_omni.engines.sglang import compat
toolkit.provide()
compat.prepare("cpu")
import torch
from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
from sglang_omni.engines.sglang.kernels import build_kernels
from sglang_omni.model_runner.config import DecoderConfig
config = DecoderConfig.from_dir(sys.argv[1])
with override_jit_cuda_arch(9, 0):
    try:
        build_kernels(torch.bfloat16, config)
    except ImportError as error:
        sys.exit(f"ImportError: {error}")
"""
KERNELS = {"clamp_position", "activation", "fused_rope", "qknorm", "moe_topk_softmax"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The config.json of a language model of experts, with norms of its heads."""
    fields = {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 151_645,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return tmp_path


def start(checkpoint: Path, **environment: str) -> subprocess.Popen[str]:
    """A process of this Python, called by its path: its programs are not on the PATH."""
    return subprocess.Popen(
        [sys.executable, "-c", STAGE, str(checkpoint)],
        env={
            "HOME": str(checkpoint),
            "PATH": os.defpath,
            "PYTHONPATH": str(ROOT / "python"),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def compiled(said: str) -> list[str]:
    words = "Compiling SGLang's kernel "
    return [line.removeprefix(words).split()[0] for line in said.splitlines() if line.startswith(words)]


@pytest.mark.timeout(1800)
def test_two_ranks_compile_each_kernel_once_and_load_it(checkpoint: Path) -> None:
    ranks = [start(checkpoint), start(checkpoint)]
    said = [rank.communicate(timeout=1700)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert sorted(compiled("\n".join(said))) == sorted(KERNELS)
    kept = [*(checkpoint / ".cache/sglang/jit/sm90a").rglob("*.so")]
    assert len(kept) == len(KERNELS)

    later = start(checkpoint)
    said_later, _ = later.communicate(timeout=900)
    assert later.returncode == 0, said_later
    assert compiled(said_later) == []


@pytest.mark.timeout(900)
def test_a_compiler_that_fails_is_one_line(checkpoint: Path) -> None:
    broken = checkpoint / "broken"
    (broken / "lib64").mkdir(parents=True)
    (broken / "bin").mkdir()
    (broken / "lib64/libcudart.so").touch()
    (broken / "bin/nvcc").write_text("#!/bin/sh\necho 'nvcc fatal: no licence' >&2\nexit 1\n")
    (broken / "bin/nvcc").chmod(0o755)
    stage = start(checkpoint, CUDA_HOME=str(broken))
    said, _ = stage.communicate(timeout=800)
    assert stage.returncode == 1, said
    line = "ImportError: SGLang cannot compile its kernels for this GPU: nvcc fatal: no licence"
    assert said.splitlines()[-1] == line
