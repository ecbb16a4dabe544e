"""What a model of frames takes of a GPU is counted before anything is loaded, from CSM's published sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_gpus import fake_gpus

from sglang_omni.config import validate_config
from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.memory import fit_memory
from sglang_omni.config.plan.memory_plan import GIB
from sglang_omni.models.csm.config import CsmPipelineConfig

HIDDEN, GROUPS, CODES = 2048, 32, 2051
ROPE = {"factor": 32.0, "high_freq_factor": 0.5, "low_freq_factor": 0.125, "rope_type": "llama3"}
CONFIG = {
    **{"model_type": "csm", "hidden_size": HIDDEN, "intermediate_size": 8192, "num_hidden_layers": 16},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 2048},
    **{"vocab_size": CODES, "text_vocab_size": 128_256, "num_codebooks": GROUPS},
    "rope_parameters": {**ROPE, "original_max_position_embeddings": 1024, "rope_theta": 500_000},
    "codec_config": {
        **{"model_type": "mimi", "num_filters": 64, "hidden_size": 512, "num_hidden_layers": 8},
        "sliding_window": 250,
    },
}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A checkpoint as large as the published one, of which the file is all holes."""
    shapes = {
        "backbone_model.layers": [16, 60_821_504],
        "depth_decoder.model": [4, 30_000_000],
        "depth_decoder.codebooks_head.weight": [GROUPS - 1, 1024, CODES],
        "depth_decoder.model.embed_tokens.weight": [GROUPS * CODES, HIDDEN],
        "backbone_model.embed_tokens.embed_audio_tokens.weight": [GROUPS * CODES, HIDDEN],
        "embed_text_tokens.weight": [128_256, HIDDEN],
        "lm_head.weight": [CODES, HIDDEN],
        "codec_model.all": [96_000_000],
    }
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, count = end, 4
        for size in shape:
            count *= size
        end = begin + count
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + end)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_all_stages_share_one_gpu(published: Path) -> None:
    gpus = fake_gpus("L4", 2)
    config = CsmPipelineConfig.placed(str(published), gpus)
    assert {stage.name: stage.gpu for stage in config.stages} == {
        **{"preprocess": None, "reference": 0, "speak": 0, "code2wav": 0, "voice": None},
    }
    plan = fit_memory(config, gpus)
    assert plan is not None
    assert plan.fits
    validate_config(config)
    taken = {memory.stage: memory for memory in plan.gpus[0].stages}
    # 3.6 GB of decoders in 16 bits; a codec in 32.
    assert 3.0 * GIB < taken["speak"].weights < 4.0 * GIB
    assert taken["code2wav"].weights == 4 * 96_000_000
    args = merge_factory_args(config.stage("speak"), config)
    assert args["max_total_tokens"] == 16 * 2048
    # Keys and values of 16 layers, 8 heads of 64, in 16 bits.
    assert taken["speak"].kv == args["max_total_tokens"] * 2 * 16 * 8 * 64 * 2


def test_the_config_is_read_without_torch() -> None:
    code = (
        "import sys; from sglang_omni.models.csm.config import default_config; "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    reported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert reported.stdout == "[]\n"
