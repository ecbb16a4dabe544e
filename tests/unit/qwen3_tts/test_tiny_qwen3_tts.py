"""Random Qwen3-TTS checkpoints: names and shapes are the published ones, and the authors' package speaks."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qwen3_tts_oracle import RATE, Qwen3TTSOracle, Recording
from safetensors.numpy import load_file

from sglang_omni.models.qwen3_tts.tiny_checkpoint import KINDS, make
from sglang_omni.models.qwen3_tts.tiny_weights import codec_specs, model_specs
from sglang_omni.published import PublishedModel, published_codec, published_model, published_models

MODELS = published_models("qwen3_tts")
# Of the authors' class; published configs leave them out.
SPEAKER_ENCODER = {
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_attention_channels": 128,
    "enc_se_channels": 128,
}
# SHA-256 of small files as others pin them; of config.json some lines are indented otherwise than the rest.
PINNED = {
    "generation_config.json": "f1b90b4513f3b34c62851049e2492d7b4c5940daf1276f89c82b8ef04127f3aa",
    "preprocessor_config.json": "efdde1022ea9d76928bf7a9cd53139138f5ba2e466e837f08f6105ab1af1c119",
}
PINNED_TOKENIZER = "dc3c31c3bdaedd5016382bb3cbe07323026775ad51f5a4fb564505992ae4a670"
PINNED_CODEC = {
    "config.json": "ee65bb901c876664ab8707c487157aa1a6ee57c65969b28fb5ec9dc211e68167",
    "preprocessor_config.json": "fcb3805e597e786d4067706e602f6688524640f8d3396790e2e09b5942fcbdfb",
}
# Of each kind, with both widths of the decoder of a frame.
SHAPES = [(kind, width) for kind in KINDS for width in (24, 32)]
TEXTS = ("Hello.", "The house by the river is old.", "A bird sings in the garden, and the moon is up.")


def numbers(model: PublishedModel) -> int:
    return sum(prod(shape) for _, _, shape in model.stored_tensors())


def fields_of(value: Any) -> Any:
    """A config without its values, but with the order of its fields."""
    if not isinstance(value, dict):
        return None
    return [(name, fields_of(part)) for name, part in value.items()]


def names_of(tensors: Any) -> set[str]:
    """Names without the numbers of layers and codebooks, of which a small checkpoint has fewer."""
    repeated = r"(?<!encoder\.encoder)\.(layers|codec_embedding|lm_head)\.\d+\."
    return {re.sub(repeated, r".\1.*.", name) for name in tensors}


def test_the_facts_are_as_many_as_the_published_weights() -> None:
    small, codec = published_model("qwen3_tts", MODELS[1].id), published_codec("qwen3_tts")
    assert small.id == "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
    assert (len(list(small.tensor_names())), numbers(small)) == (402, 905_788_672)
    assert (len(list(codec.tensor_names())), numbers(codec)) == (496, 170_557_441)
    assert {dtype for _, dtype, _ in small.stored_tensors()} == {"BF16"}
    assert {dtype for _, dtype, _ in codec.stored_tensors()} == {"F32"}
    for model in MODELS:
        assert {name.partition("/")[2]: size for name, size in model.listing.items() if "/" in name} == {
            name: size for name, size in codec.listing.items() if size is not None
        }


def test_the_facts_are_the_published_files_to_the_byte() -> None:
    # Its facts have their fields in the file's order.
    tokenizer = published_model("qwen3_omni").config("tokenizer_config.json")
    text = json.dumps(tokenizer, indent=2, ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == PINNED_TOKENIZER
    for model in MODELS:
        for name, pinned in PINNED.items():
            text = json.dumps(model.config(name), indent=2)
            assert hashlib.sha256(text.encode()).hexdigest() == pinned, name
            assert len(text) == model.listing[name]
        assert model.config("tokenizer_config.json") == tokenizer
    codec = published_codec("qwen3_tts")
    for name, pinned in PINNED_CODEC.items():
        text = json.dumps(codec.config(name), indent=2) + "\n"
        assert hashlib.sha256(text.encode()).hexdigest() == pinned, name
        assert len(text) == codec.listing[name]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.id.partition("12Hz-")[2])
def test_the_weights_that_are_made_are_those_that_are_published(model: PublishedModel) -> None:
    """Of a whole model: each name and shape."""
    config = model.config()
    if "speaker_encoder_config" in config:
        config["speaker_encoder_config"] |= SPEAKER_ENCODER
    assert {spec.name: spec.shape for spec in model_specs(config)} == {
        name: shape for name, _, shape in model.stored_tensors()
    }


def test_the_codec_that_is_made_is_the_one_that_is_published() -> None:
    codec = published_codec("qwen3_tts")
    assert {spec.name: spec.shape for spec in codec_specs(codec.config())} == {
        name: shape for name, _, shape in codec.stored_tensors()
    }


@pytest.mark.parametrize(("kind", "width"), SHAPES)
def test_a_checkpoint_has_the_published_files_and_names(kind: str, width: int, tmp_path: Path) -> None:
    make(tmp_path, kind=kind, predictor_hidden=width)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tts_model_type"] == kind
    assert config["tts_model_size"] == ("0b6" if width == 32 and kind != "voice_design" else "1b7")
    size = {"0b6": "0.6B", "1b7": "1.7B"}[config["tts_model_size"]]
    model = published_model("qwen3_tts", f"Qwen/Qwen3-TTS-12Hz-{size}-{KINDS[kind]}")
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {"RANDOM_WEIGHTS", *model.listing} - {".gitattributes", "README.md"}
    made = names_of(load_file(tmp_path / "model.safetensors"))
    published = names_of(model.tensor_names())
    projection = {f"talker.code_predictor.small_to_mtp_projection.{part}" for part in ("weight", "bias")}
    if kind == "voice_design" and width == 32:
        published -= projection
    assert made == published
    assert (projection <= made) == (width != 32)
    folder, codec = tmp_path / "speech_tokenizer", published_codec("qwen3_tts")
    assert names_of(load_file(folder / "model.safetensors")) == names_of(codec.tensor_names())
    for name in codec.configs:
        assert fields_of(json.loads((folder / name).read_text())) == fields_of(codec.config(name)), name


def test_ids_keep_their_distance_from_the_codes(tmp_path: Path) -> None:
    made = json.loads((make(tmp_path, kind="custom_voice", codes=128) / "config.json").read_text())[
        "talker_config"
    ]
    published = published_model("qwen3_tts", MODELS[3].id).config()["talker_config"]
    for name in ("codec_bos_id", "codec_eos_token_id", "codec_pad_id", "codec_think_id", "vocab_size"):
        assert made[name] - 128 == published[name] - 2048, name
    assert made["spk_id"]["aiden"] - 128 == published["spk_id"]["aiden"] - 2048
    assert made["codec_language_id"]["beijing_dialect"] - 128 == 2074 - 2048
    assert made["spk_is_dialect"] == published["spk_is_dialect"]


def test_the_seed_says_what_the_weights_are(tmp_path: Path) -> None:
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        make(tmp_path / folder, seed)
    for file in ("model.safetensors", "speech_tokenizer/model.safetensors"):
        first, again, other = ((tmp_path / folder / file).read_bytes() for folder in "abc")
        assert first == again
        assert first != other


def test_there_is_no_other_kind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kind 'loud' is none of base, custom_voice, voice_design"):
        make(tmp_path, kind="loud")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Qwen3TTSOracle]:
    """``oracle(kind, predictor_hidden=24, seed=0)``: a checkpoint, made once."""

    @cache
    def made(kind: str, predictor_hidden: int = 24, seed: int = 0) -> Qwen3TTSOracle:
        folder = tmp_path_factory.mktemp(f"{kind}-{predictor_hidden}-{seed}")
        return Qwen3TTSOracle.make(folder, seed, kind=kind, predictor_hidden=predictor_hidden)

    return made


def tone(hertz: float, seconds: float = 0.3) -> np.ndarray[Any, np.dtype[np.float32]]:
    times = np.arange(round(seconds * RATE)) / RATE
    swelling = 0.4 * np.sin(2 * np.pi * 3 * times) ** 2
    return (swelling * np.sin(2 * np.pi * hertz * times)).astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "width"), SHAPES)
def test_the_authors_package_reads_every_weight(
    kind: str, width: int, oracle: Callable[..., Qwen3TTSOracle]
) -> None:
    assert oracle(kind, width).unread() == []


@pytest.mark.long
def test_speech_varies_and_ends(oracle: Callable[..., Qwen3TTSOracle]) -> None:
    """From frame to frame and from text to text; its samples are neither silent nor clipped."""
    ended = []
    for seed in range(3):
        design = oracle("voice_design", seed=seed)
        said = [design.speak(text, 60, instruct="A low voice.") for text in TEXTS]
        ended += [each.ended for each in said]
        assert len({str(each.frames[:8]) for each in said}) == len(TEXTS)
        for each in said:
            codes = np.array(each.frames)
            assert len(np.unique(codes, axis=0)) > len(codes) // 3
            assert all(len(np.unique(group)) > 3 for group in codes.T)
            assert len(each.samples) == 96 * len(codes)
            assert 0.02 < np.abs(each.samples).max() < 1
    assert any(ended)
    assert not all(ended)


@pytest.mark.long
def test_a_voice_is_heard(oracle: Callable[..., Qwen3TTSOracle]) -> None:
    """A named one, a described one, and that of a recording: its vector, and what it says."""
    text = TEXTS[1]
    named = oracle("custom_voice")
    by_name = named.speak(text, 20, speaker="ryan").frames
    assert by_name != named.speak(text, 20, speaker="serena").frames
    assert by_name != named.speak(text, 20, speaker="ryan", instruct="Whisper.").frames
    low, high = tone(200), tone(900)
    base = oracle("base")
    vectors = [base.speaker(samples) for samples in (low, high)]
    assert np.abs(vectors[0] - vectors[1]).max() > 0.1
    assert 0.1 < np.abs(vectors[0]).mean() < 10
    codes = [base.encode(samples) for samples in (low, high)]
    assert codes[0].shape == (75, 4)
    assert (codes[0] != codes[1]).any(axis=0).all()
    spoken = [
        base.speak(text, 20, recording=Recording(samples, said)).frames
        for samples in (low, high)
        for said in (None, TEXTS[0])
    ]
    assert len({str(frames) for frames in spoken}) == 4
    streamed = base.speak(text, 20, recording=Recording(low, TEXTS[0]), non_streaming_mode=True)
    assert streamed.frames != spoken[1]
    assert base.decode(spoken[0]).shape == (96 * len(spoken[0]),)
