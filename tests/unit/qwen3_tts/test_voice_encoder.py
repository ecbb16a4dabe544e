"""What Base models read of a recording: its codes and the vector of its voice are the authors' package's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen3_tts_oracle import Qwen3TTSOracle
from scheduler_runs import running

from sglang_omni.models.codecs.mimi import VoiceRecording
from sglang_omni.models.qwen3_tts.codec_stages import create_reference
from sglang_omni.models.qwen3_tts.components.speaker import MIN_SAMPLES, SpeakerConfig, SpeakerEncoder
from sglang_omni.models.qwen3_tts.components.voice_encoder import RecordedVoiceEncoder
from sglang_omni.models.qwen3_tts.tiny_checkpoint import make
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage

FRAME = 96
# Of what is a few units large: sums over frames and channels in another order.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
LENGTHS = (MIN_SAMPLES, MIN_SAMPLES + 1, 1919, 1920, 1921, 5000, 24_077)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("qwen3-tts"))


@pytest.fixture(scope="module")
def encoder(path: Path) -> RecordedVoiceEncoder:
    return RecordedVoiceEncoder.load(path, torch.float32, "cpu")


def recording(length: int, seed: int = 0) -> VoiceRecording:
    """Noise that swells."""
    noise = torch.randn(length, generator=torch.Generator().manual_seed(seed))
    samples = (noise * torch.linspace(0.0, 0.3, length)).clamp(-1, 1)
    return VoiceRecording(key=f"{length}-{seed}".encode(), samples=samples)


@pytest.mark.long
@pytest.mark.parametrize("length", LENGTHS)
def test_codes_and_voice_are_the_packages(path: Path, encoder: RecordedVoiceEncoder, length: int) -> None:
    oracle = Qwen3TTSOracle(path)
    item = recording(length)
    ((codes, voice),) = encoder.encode([item])
    samples = item["samples"].numpy()
    assert torch.equal(codes, torch.from_numpy(oracle.encode(samples)))
    torch.testing.assert_close(voice, torch.from_numpy(oracle.speaker(samples)), **CLOSE)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_last_part_frame_counts(encoder: RecordedVoiceEncoder, length: int) -> None:
    ((codes, voice),) = encoder.encode([recording(length)])
    assert (codes.shape, codes.dtype) == ((-(-length // FRAME), 4), torch.int64)
    assert (voice.shape, voice.dtype) == ((32,), torch.float32)


def test_recordings_are_encoded_together_as_alone(encoder: RecordedVoiceEncoder) -> None:
    items = [recording(5000, seed) for seed in range(3)]
    for item, (codes, voice) in zip(items, encoder.encode(items), strict=True):
        ((alone, voice_alone),) = encoder.encode([item])
        assert torch.equal(codes, alone)
        torch.testing.assert_close(voice, voice_alone, **CLOSE)
    assert not torch.equal(alone, encoder.encode(items[:1])[0][0])
    assert not torch.allclose(voice_alone, encoder.encode(items[:1])[0][1], **CLOSE)


def test_a_shorter_recording_cannot_be_encoded(encoder: RecordedVoiceEncoder) -> None:
    """It has too few frames to be mirrored at an end."""
    with pytest.raises(RuntimeError, match="Padding size"):
        encoder.encode([recording(MIN_SAMPLES - 1)])


def test_the_stage_puts_out_both(path: Path, encoder: RecordedVoiceEncoder) -> None:
    stage, item = create_reference(str(path), num_threads=1), recording(5000)
    data = {"parts": [[1]], "opening": [2], "reference": [3], "recording": item}
    with running(stage):
        stage.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", OmniRequest(None), data)))
        message = stage.outbox.get(timeout=60)
    assert message.type == "result", message.data
    given = message.data.data
    ((codes, voice),) = encoder.encode([item])
    assert set(given) == {"parts", "opening", "reference", "reference_codes", "speaker"}
    assert torch.equal(given["reference_codes"], codes)
    torch.testing.assert_close(given["speaker"], voice, **CLOSE)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"sample_rate": 16_000}, "sample_rate of 24000"),
        ({"enc_kernel_sizes": [5, 5, 5, 5, 1], "enc_dilations": [1, 2, 3, 3, 1]}, "reach less than 5 frames"),
        ({"enc_dilations": [1, 2, 3, 4]}, "equally many"),
        ({"enc_channels": [16, 16, 16, 24, 56]}, "equal"),
        ({"enc_channels": [16, 16, 16, 16, 64]}, "the blocks' sum"),
    ],
)
def test_another_speaker_encoder_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SpeakerConfig.from_fields(fields)


def test_a_model_without_a_speaker_encoder_is_reported(tmp_path: Path) -> None:
    make(tmp_path, kind="custom_voice")
    with pytest.raises(ValueError, match="no tensors whose names begin with 'speaker_encoder"):
        SpeakerEncoder.load(tmp_path, torch.float32, "cpu")


def test_a_speaker_encoder_of_other_sizes_is_reported(path: Path, tmp_path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    config["speaker_encoder_config"]["enc_dim"] = 33
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(path / "model.safetensors")
    with pytest.raises(ValueError, match=r"speaker_encoder\.fc\.weight.*asks for \(33"):
        SpeakerEncoder.load(tmp_path, torch.float32, "cpu")
