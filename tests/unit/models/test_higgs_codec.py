"""The codec of Higgs Audio v2: its sound and its codes are those of transformers' class."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import torchaudio
from higgs_oracle import RATE, HiggsOracle

from sglang_omni.models.codecs.higgs_encoder import HiggsEncoder
from sglang_omni.models.codecs.higgs_tokenizer import HiggsDecoder
from sglang_omni.models.codecs.mimi import VoiceRecording
from sglang_omni.models.codecs.resample import resample
from sglang_omni.models.higgs_audio_v2.codec_place import codec_dir

FRAMES = 40
CLOSE = {"rtol": 0.0, "atol": 1e-5}
FLOAT = torch.float32


@pytest.fixture(scope="module")
def decoder(higgs: HiggsOracle) -> HiggsDecoder:
    return HiggsDecoder.load(higgs.path / "audio_tokenizer", FLOAT, "cpu")


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    return torch.randint(32, (2, 4, FRAMES), generator=torch.Generator().manual_seed(1))


def test_codes_sound_as_in_transformers(
    higgs: HiggsOracle, decoder: HiggsDecoder, codes: torch.Tensor
) -> None:
    with torch.inference_mode():
        both, alone = decoder(codes), decoder(codes[:1])
    expected = torch.stack([higgs.decode(each.t()) for each in codes])
    assert 0.1 < expected.abs().max() < 1
    torch.testing.assert_close(both[:, 0], expected, **CLOSE)
    torch.testing.assert_close(alone, both[:1], **CLOSE)
    assert both.shape[-1] == FRAMES * decoder.total_upsample


def test_the_context_is_what_samples_depend_on(decoder: HiggsDecoder, codes: torch.Tensor) -> None:
    hop, first, last = decoder.total_upsample, 15, 20
    with torch.inference_mode():
        whole = decoder(codes)[..., first * hop : last * hop]

        def window(context: int) -> torch.Tensor:
            wave = decoder(codes[..., first - context : last + context])
            return wave[..., context * hop : (context + last - first) * hop]

        torch.testing.assert_close(window(decoder.context_frames), whole, **CLOSE)
        assert (window(decoder.context_frames - 1) - whole).abs().max() > 1e-4


def test_recordings_have_transformers_codes(higgs: HiggsOracle) -> None:
    encoder = HiggsEncoder.load(higgs.path / "audio_tokenizer", FLOAT, "cpu")
    chance = torch.Generator().manual_seed(2)
    # With and without the frame that the codec's halves disagree about.
    for length in (960, 1439, 5000, 19_199, 19_200, 19_201):
        sounds = torch.rand((2, length), generator=chance) - 0.5
        items = [VoiceRecording(key=b"", samples=sound) for sound in sounds]
        together = [codes for (codes,) in encoder.encode(items)]
        for sound, found in zip(sounds, together, strict=True):
            assert found.dtype == torch.int64
            assert torch.equal(found, higgs.encode(sound))
    assert len(together[0].unique()) > 8


def test_resampling_is_torchaudios() -> None:
    waves = torch.rand((2, 4801), generator=torch.Generator().manual_seed(3)) - 0.5
    for rates in ((24_000, 16_000), (16_000, 24_000), (24_000, 24_000)):
        torch.testing.assert_close(
            resample(waves, *rates), torchaudio.functional.resample(waves, *rates), rtol=0.0, atol=1e-6
        )


def test_the_codec_is_found_or_asked_for(higgs: HiggsOracle, tmp_path: Path) -> None:
    beside = higgs.path / "audio_tokenizer"
    assert codec_dir(higgs.path, None) == beside
    named = tmp_path / "model"
    named.mkdir()
    reported = {"audio_tokenizer": {"audio_tokenizer_name_or_path": str(beside)}}
    (named / "processor_config.json").write_text(json.dumps(reported))
    assert codec_dir(named, None) == beside
    other = tmp_path / "codec"
    shutil.copytree(beside, other)
    assert codec_dir(named, str(other)) == other
    (named / "processor_config.json").unlink()
    with pytest.raises(ValueError, match=r"is missing: put it into .*audio_tokenizer, or give codec_path"):
        codec_dir(named, None)
    with pytest.raises(ValueError, match="nowhere is no directory"):
        codec_dir(named, str(tmp_path / "nowhere"))


def test_another_models_files_are_reported(higgs: HiggsOracle) -> None:
    with pytest.raises(ValueError, match="no codec of Higgs Audio v2"):
        HiggsDecoder.load(higgs.path, FLOAT, "cpu")
    assert HiggsDecoder.load(higgs.path / "audio_tokenizer", FLOAT, "cpu").sample_rate == RATE
