"""The codec of Higgs Audio v2 in several shapes: what transformers' class saves, decodes and encodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_omni.models.codecs.higgs_encoder import HiggsEncoder
from sglang_omni.models.codecs.higgs_tokenizer import HiggsDecoder
from sglang_omni.models.codecs.mimi import VoiceRecording
from sglang_omni.models.higgs_audio_v2.tiny_tokenizer import make_tokenizer

CLOSE = {"rtol": 0.0, "atol": 1e-5}
FLOAT = torch.float32
# What only training needs.
UNUSED = ("decoder_semantic.", "fc1.", "semantic_model.masked_spec_embed")
UNUSED_OF_CODEBOOKS = (".inited", ".cluster_size", ".embed_avg")


@dataclass(eq=False)
class Codec:
    path: Path
    model: Any
    decoder: HiggsDecoder
    encoder: HiggsEncoder

    def codes(self, rows: int, frames: int, seed: int) -> torch.Tensor:
        size = self.model.config.codebook_size
        chance = torch.Generator().manual_seed(seed)
        return torch.randint(size, (rows, self.decoder.num_groups, frames), generator=chance)


def published_ratios(path: Path) -> None:
    make_tokenizer(path, 7, codebooks=8, codes=64, semantic_size=24)


def other_ratios(path: Path) -> None:
    """50 frames a second, as many as HuBERT's, and other kernels, dilations and widths, as transformers
    saves them; with a bandwidth that is not the default.
    """
    from transformers import HiggsAudioV2TokenizerModel

    make_tokenizer(path, 11, codebooks=3, codes=32, semantic_size=16)
    fields = json.loads((path / "config.json").read_text())
    fields |= {"kernel_size": 5, "unit_kernel_size": 5, "channel_ratios": [2, 1], "block_dilations": [1, 3]}
    ratios = [8, 5, 4, 3]
    fields["acoustic_model_config"] |= {"downsampling_ratios": ratios, "upsampling_ratios": ratios}
    # 3.4 times five bits, 50 times a second, of which whole codes are used.
    fields["target_bandwidths"] = [0.3, 0.85]
    config = HiggsAudioV2TokenizerModel.config_class(**fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = HiggsAudioV2TokenizerModel(config).eval()
    chance = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.startswith("semantic_model.") or name.endswith((".inited", ".cluster_size")):
                continue
            numbers = torch.randn(tensor.shape, generator=chance)
            if name.endswith("alpha"):
                numbers = 1 + 0.1 * numbers
            elif name.endswith("bias"):
                numbers = 0.1 * numbers
            elif tensor.dim() > 1 and not name.endswith(("embed", "embed_avg")):
                numbers *= (0.3 if ".conv2." in name else 1.0) * numbers[0].numel() ** -0.5
            tensor.copy_(numbers)
        wave = model.decode(torch.randint(32, (4, 3, 30), generator=chance)).audio_values
        for part in (model.acoustic_decoder.conv2.weight, model.acoustic_decoder.conv2.bias):
            part.mul_(0.6 / wave.abs().max())
    model.save_pretrained(path)


@pytest.fixture(scope="module", params=[published_ratios, other_ratios])
def codec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Codec:
    from transformers import HiggsAudioV2TokenizerModel

    torch.set_num_threads(1)
    make: Callable[[Path], None] = request.param
    path = tmp_path_factory.mktemp(make.__name__)
    make(path)
    model = HiggsAudioV2TokenizerModel.from_pretrained(path, dtype=FLOAT).eval()
    return Codec(path, model, HiggsDecoder.load(path, FLOAT, "cpu"), HiggsEncoder.load(path, FLOAT, "cpu"))


def test_codes_of_any_length_sound_as_in_transformers(codec: Codec) -> None:
    assert codec.decoder.num_groups == codec.model.config.num_quantizers
    for frames in (1, 2, 7, 33):
        codes = codec.codes(3, frames, seed=frames)
        with torch.inference_mode():
            together, alone = codec.decoder(codes), codec.decoder(codes[1:2])
            expected = codec.model.decode(codes).audio_values
        assert expected.shape[-1] == frames * codec.decoder.total_upsample
        torch.testing.assert_close(together, expected, **CLOSE)
        torch.testing.assert_close(alone, together[1:2], **CLOSE)
    assert 0.1 < expected.abs().max() < 1
    assert (expected[0] - expected[1]).abs().max() > 0.1


def test_samples_depend_on_the_context_and_on_no_more(codec: Codec) -> None:
    reach, hop = codec.decoder.context_frames, codec.decoder.total_upsample
    middle = reach + 2
    codes = codec.codes(1, 2 * middle + 1, seed=1)
    # In each row another frame is changed.
    changed = codes.repeat(codes.shape[-1], 1, 1)
    for frame, row in enumerate(changed):
        row[:, frame] = (row[:, frame] + 7) % codec.model.config.codebook_size
    with torch.inference_mode():
        waves = codec.decoder(torch.cat((codes, changed)))[..., middle * hop : (middle + 1) * hop]
    differs = (waves[1:, 0] - waves[0, 0]).abs().amax(dim=-1)
    heard = [frame - middle for frame, most in enumerate(differs) if most > 1e-5]
    assert (heard[0], heard[-1]) == (-reach, reach)


def test_codes_that_the_codec_lacks_are_its_last(codec: Codec) -> None:
    codes = codec.codes(1, 5, seed=2)
    size = codec.model.config.codebook_size
    codes[..., 2] = size - 1
    beyond = codes.clone()
    beyond[..., 2] = size + 1
    with torch.inference_mode():
        assert torch.equal(codec.decoder(beyond), codec.decoder(codes))


def test_recordings_of_any_length_have_transformers_codes(codec: Codec) -> None:
    chance = torch.Generator().manual_seed(3)
    padded, used = set(), set()
    for length in (160, 719, 960, 1440, 4800, 19_199, 19_200, 19_201, 24_077):
        sounds = torch.rand((2, length), generator=chance) - 0.5
        with torch.inference_mode():
            expected = codec.model.encode(sounds.unsqueeze(1)).audio_codes.transpose(1, 2)
        items = [VoiceRecording(key=b"", samples=sound) for sound in sounds]
        together = [codes for (codes,) in codec.encoder.encode(items)]
        assert torch.equal(torch.stack(together), expected)
        ((alone,),) = codec.encoder.encode(items[1:])
        assert torch.equal(alone, together[1])
        frames = codec.model._get_conv1d_output_lengths(length, codec.model.acoustic_encoder)
        padded.add(bool(frames != expected.shape[1]))
        used |= set(expected.flatten().tolist())
    assert padded == {True, False}
    assert len(used) > 16


def test_what_only_training_needs_may_be_missing(codec: Codec, tmp_path: Path) -> None:
    tensors = load_file(codec.path / "model.safetensors")
    needed = {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(UNUSED) and not name.endswith(UNUSED_OF_CODEBOOKS)
    }
    assert len(needed) < len(tensors)
    save_file(needed, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((codec.path / "config.json").read_bytes())
    codes = codec.codes(1, 5, seed=4)
    item = VoiceRecording(key=b"", samples=torch.rand(4800, generator=torch.Generator().manual_seed(4)) - 0.5)
    with torch.inference_mode():
        assert torch.equal(HiggsDecoder.load(tmp_path, FLOAT, "cpu")(codes), codec.decoder(codes))
    ((found,),) = HiggsEncoder.load(tmp_path, FLOAT, "cpu").encode([item])
    ((expected,),) = codec.encoder.encode([item])
    assert torch.equal(found, expected)
    del needed["fc2.bias"], needed["fc.bias"]
    save_file(needed, tmp_path / "model.safetensors", {"format": "pt"})
    for half in (HiggsDecoder, HiggsEncoder):
        with pytest.raises(ValueError, match=r"lacks the tensor 'fc2?\.bias'"):
            half.load(tmp_path, FLOAT, "cpu")
