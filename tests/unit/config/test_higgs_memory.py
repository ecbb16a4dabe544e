"""What Higgs Audio v2 takes of a GPU is counted from its two checkpoints, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys

from fake_gpus import fake_gpus
from higgs_oracle import HiggsOracle

from sglang_omni.config import validate_config
from sglang_omni.config.plan.memory import fit_memory
from sglang_omni.config.plan.weights import tensor_sizes
from sglang_omni.models.higgs_audio_v2.config import HiggsAudioPipelineConfig


def test_all_stages_of_higgs_audio_share_one_gpu(higgs: HiggsOracle) -> None:
    gpus = fake_gpus("L4", 2)
    config = HiggsAudioPipelineConfig.placed(str(higgs.path), gpus)
    assert {stage.name: stage.gpu for stage in config.stages} == {
        **{"preprocess": None, "reference": 0, "speak": 0, "code2wav": 0, "voice": None},
    }
    plan = fit_memory(config, gpus)
    assert plan is not None
    assert plan.fits
    validate_config(config)
    taken = {memory.stage: memory for memory in plan.gpus[0].stages}
    codec = sum(size.loaded_bytes("float32", None) for size in tensor_sizes(higgs.path / "audio_tokenizer"))
    # Each has its half of the codec, and both have the codebooks.
    halves = [taken[stage].weights for stage in ("reference", "code2wav")]
    assert max(halves) < codec < sum(halves) + codec // 4
    model = sum(size.loaded_bytes("bfloat16", None) for size in tensor_sizes(higgs.path))
    assert taken["speak"].weights == model


def test_the_launcher_imports_no_torch_for_it(higgs: HiggsOracle) -> None:
    code = (
        "import sys; from sglang_omni.models.higgs_audio_v2.config import default_config; "
        f"default_config({str(higgs.path)!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
