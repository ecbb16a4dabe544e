"""What recognizers take of a GPU is counted before anything is loaded, from published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import fake_gpus

from sglang_omni.config import PipelineConfig, validate_config
from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.memory import fit_memory
from sglang_omni.config.plan.memory_plan import GIB, StageMemory
from sglang_omni.models.qwen3_asr.config import Qwen3ASRPipelineConfig
from sglang_omni.models.voxtral_realtime.config import VoxtralRealtimePipelineConfig
from sglang_omni.models.whisper.config import WhisperPipelineConfig
from sglang_omni.published import published_model

# whisper-large-v3: 1.55 G parameters.
WHISPER = {
    **{"model_type": "whisper", "d_model": 1280, "num_mel_bins": 128, "vocab_size": 51_866},
    **{"encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120},
    **{"decoder_layers": 32, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120},
    **{"max_source_positions": 1500, "max_target_positions": 448, "decoder_start_token_id": 50_258},
    "eos_token_id": 50_257,
}
# Qwen3-ASR-0.6B, in its authors' layout.
QWEN3_ASR = {
    "model_type": "qwen3_asr",
    "architectures": ["Qwen3ASRForConditionalGeneration"],
    "thinker_config": {
        "audio_config": {
            **{"d_model": 896, "encoder_layers": 18, "encoder_attention_heads": 14, "encoder_ffn_dim": 3584},
            **{"num_mel_bins": 128, "downsample_hidden_size": 480, "n_window": 50, "n_window_infer": 800},
            **{"conv_chunksize": 500, "output_dim": 1024},
        },
        "text_config": {
            **{"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128},
            **{"num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151_936},
            **{"max_position_embeddings": 65_536, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000},
        },
    },
}


def hollow(folder: Path, config: dict[str, Any], parameters: int) -> str:
    """A checkpoint of so many parameters in 16 bits, of which the file is all holes."""
    header = {"all": {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, 2 * parameters]}}
    encoded = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + 2 * parameters)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def fitted(config: PipelineConfig, gpu: str) -> StageMemory:
    """What ``transcribe`` is counted to take of it; the config then has its share."""
    config.stage("transcribe").gpu = 0
    gpus = fake_gpus(gpu)
    plan = fit_memory(config, gpus)
    assert plan is not None
    assert plan.fits
    validate_config(config)
    (taken,) = plan.gpus[0].stages
    return taken


def test_whisper(tmp_path: Path) -> None:
    path = hollow(tmp_path, WHISPER, 1_550_000_000)
    taken = fitted(WhisperPipelineConfig(model_path=path), "L4")
    assert taken.weights == 2 * 1_550_000_000
    # Sixteen recordings at 320 MB.
    assert 16 * 319e6 < taken.workspace < 16 * 319e6 + 2 * GIB
    four = WhisperPipelineConfig(
        model_path=path, runtime_overrides={"transcribe": {"max_running_requests": 4}}
    )
    assert fitted(four, "L4").workspace == pytest.approx(taken.workspace - 12 * 319e6, rel=0.02)


def test_qwen3_asr(tmp_path: Path) -> None:
    config = Qwen3ASRPipelineConfig(model_path=hollow(tmp_path, QWEN3_ASR, 780_000_000))
    taken = fitted(config, "L4")
    assert taken.weights == 2 * 780_000_000
    args = merge_factory_args(config.stage("transcribe"), config)
    # Keys and values of 28 layers, 8 heads of 128, in 16 bits; sixteen pieces of two minutes with their text.
    assert taken.kv == args["max_total_tokens"] * 2 * 28 * 8 * 128 * 2
    assert args["max_total_tokens"] == pytest.approx(16 * (120 * 29 + 512), rel=0.01)
    assert taken.total < 16 * GIB


def test_voxtral_realtime(tmp_path: Path) -> None:
    model = published_model("voxtral_realtime")
    path = hollow(tmp_path, model.config(), 4_429_679_360)
    (tmp_path / "processor_config.json").write_text(json.dumps(model.config("processor_config.json")))
    config = VoxtralRealtimePipelineConfig(model_path=path)
    taken = fitted(config, "A100 80GB")
    assert taken.weights == 2 * 4_429_679_360 == model.total_size
    args = merge_factory_args(config.stage("transcribe"), config)
    # Keys and values of 26 layers, 8 heads of 128, and a row of 3072, in 16 bits; of half an hour each.
    assert taken.kv == args["max_total_tokens"] * (2 * 26 * 8 * 128 + 3072) * 2
    assert args["max_total_tokens"] == pytest.approx(16 * 22_500, rel=0.01)
    # Windows of 16 streams, and of three times the eight that are encoded at once: 197 MB each.
    stream = 32 * 750 * 2 * 32 * 64 * 2
    assert 40 * stream < taken.workspace < 40 * stream + 4 * GIB
    four = VoxtralRealtimePipelineConfig(
        model_path=path, runtime_overrides={"transcribe": {"max_running_requests": 4}}
    )
    assert fitted(four, "A100 80GB").workspace == pytest.approx(taken.workspace - 12 * stream, rel=0.02)
