"""Makes a tiny Whisper checkpoint of random weights, in the published layout: for tests and measurements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sglang_omni.models.tiny.shapes import option
from sglang_omni.models.tiny.tokenizer import WordTokenizer, write_json
from sglang_omni.models.whisper.components.checkpoint import FRAMES_PER_POSITION, WhisperCheckpoint
from sglang_omni.published import PublishedModel, published_model, shrunk
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    import torch

_FRAMES_PER_SECOND = 100
# Tokens below are bytes, in every vocabulary the same.
_BYTES = 256
# What the model writes; the others' rows are zero.
_LANGUAGES = ("en", "zh", "de", "es", "fr", "ja")
# What is heard weighs most: else a token would be followed by itself, or be the same in every recording.
_TOKEN_STD, _PLACE_STD = 0.1, 0.1
_GAINS = {"encoder_attn.out_proj": 4.0, "q_proj": 3.0, "k_proj": 3.0}


@dataclass(frozen=True)
class TinyWhisperShape:
    """The sizes of a checkpoint, under the names of ``config.json``."""

    num_mel_bins: int = option(80, "numbers of a mel frame")
    d_model: int = option(64, "hidden size of encoder and decoder")
    encoder_layers: int = option(2, "the encoder's layers")
    encoder_attention_heads: int = option(2, "its attention heads")
    encoder_ffn_dim: int = option(128, "inner size of its MLPs")
    decoder_layers: int = option(2, "the decoder's layers")
    decoder_attention_heads: int = option(2, "its attention heads")
    decoder_ffn_dim: int = option(128, "inner size of its MLPs")
    max_source_positions: int = option(150, "positions of a window, 50 a second")
    max_target_positions: int = option(64, "longest prompt and text of a window, in tokens")
    text_tokens: int = option(400, "tokens of words, before the control tokens")
    multilingual: bool = option(True, "a model that knows several languages, and translates")


SHAPE = TinyWhisperShape


class WhisperVocabulary(Protocol):
    """The tokens of words: ids of all, and pairs that are joined, by rank."""

    vocab: dict[str, int]
    merges: list[tuple[str, str]]


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a checkpoint with all the files of the published ones, their weights once.

    Args:
        path: Its directory, which is made.
        seed: The same seed makes the same weights.
        shape: Fields of ``TinyWhisperShape``.

    Returns:
        The directory.
    """
    tiny = TinyWhisperShape(**shape)
    return make_with(Path(path), seed, tiny, WordTokenizer(tiny.text_tokens, {}, ""))


def make_with(directory: Path, seed: int, tiny: TinyWhisperShape, words: WhisperVocabulary) -> Path:
    """``make`` with words of the caller's, ``tiny.text_tokens`` of them."""
    directory.mkdir(parents=True, exist_ok=True)
    published = published_model("whisper")
    added = _added_tokens(published, tiny)
    ids = {token["content"]: int(token_id) for token_id, token in added.items()}
    _write_tokenizer(directory, words, published, added)
    _write_configs(directory, tiny, published, ids)
    languages = {f"<|{code}|>" for code in (_LANGUAGES if tiny.multilingual else _LANGUAGES[:1])}
    unused = {token for token in _languages(published) if token not in languages}
    _write_weights(directory, [ids[token] for token in unused], seed)
    mark_random(directory)
    return directory


def _languages(published: PublishedModel) -> list[str]:
    return list(published.config("generation_config.json")["lang_to_id"])


def _added_tokens(published: PublishedModel, tiny: TinyWhisperShape) -> dict[str, dict[str, Any]]:
    """The published ones up to the first time, by id, and the times of a window, 20 ms apart."""
    tokens = list(published.config("tokenizer_config.json")["added_tokens_decoder"].values())
    first_time = next(place for place, token in enumerate(tokens) if token["content"] == "<|0.00|>")
    times = [
        {**tokens[first_time], "content": f"<|{step * 0.02:.2f}|>"}
        for step in range(tiny.max_source_positions + 1)
    ]
    here = [*tokens[:first_time], *times]
    return {str(token_id): token for token_id, token in enumerate(here, start=tiny.text_tokens)}


def _write_tokenizer(
    directory: Path, words: WhisperVocabulary, published: PublishedModel, added: dict[str, dict[str, Any]]
) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.BPE(words.vocab, words.merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(**token) for token in added.values()])
    around = ["<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{around[0]} {around[1]} $A {around[2]}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in around],
    )
    tokenizer.save(str(directory / "tokenizer.json"), pretty=True)
    (directory / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in words.merges), encoding="utf-8"
    )
    write_json(directory / "vocab.json", words.vocab)
    settings = published.config("tokenizer_config.json") | {"added_tokens_decoder": added}
    write_json(directory / "tokenizer_config.json", settings)
    named = ("additional_special_tokens", "bos_token", "eos_token", "pad_token", "unk_token")
    write_json(directory / "special_tokens_map.json", {name: settings[name] for name in named})
    ids = {token["content"]: int(token_id) for token_id, token in added.items()}
    write_json(directory / "added_tokens.json", ids)
    # Spellings of English, which only scores of transcripts need.
    write_json(directory / "normalizer.json", {})


def _write_configs(
    directory: Path, tiny: TinyWhisperShape, published: PublishedModel, ids: dict[str, int]
) -> None:
    from sglang_omni.models.recordings.mel import slaney_bands

    sizes = asdict(tiny)
    del sizes["text_tokens"], sizes["multilingual"]
    names = {token_id: token for token, token_id in published.added_tokens.items()}
    same_words = tiny.text_tokens == min(names)

    def here(token_id: int | None) -> int | None:
        """The id here of a published token that is here too; tiny vocabularies have other words."""
        if token_id is None or token_id < _BYTES or (same_words and token_id not in names):
            return token_id
        return ids.get(names.get(token_id, ""))

    def all_here(token_ids: list[int]) -> list[int]:
        return [found for token_id in token_ids if (found := here(token_id)) is not None]

    marks = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    config, generation = published.config(), published.config("generation_config.json")
    for fields in (config, generation):
        fields |= {name: here(fields[name]) for name in marks}
        fields["suppress_tokens"] = all_here(fields["suppress_tokens"])
        fields["begin_suppress_tokens"] = all_here(fields["begin_suppress_tokens"])
        fields["forced_decoder_ids"] = [[at, here(token)] for at, token in fields["forced_decoder_ids"]]
        fields["max_length"] = tiny.max_target_positions
    config |= {"vocab_size": tiny.text_tokens + len(ids), "num_hidden_layers": tiny.encoder_layers}
    write_json(directory / "config.json", shrunk(config, sizes))
    layers, heads = tiny.decoder_layers, tiny.decoder_attention_heads
    here_too = [[at, head] for at, head in generation["alignment_heads"] if at < layers and head < heads]
    generation |= {
        "alignment_heads": here_too
        or [[layer, head] for layer in range(layers // 2, layers) for head in range(heads)],
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "is_multilingual": tiny.multilingual,
    }
    for name in ("lang_to_id", "task_to_id"):
        generation[name] = {key: here(token_id) for key, token_id in generation[name].items()}
    if not tiny.multilingual:
        # As in the models of English alone, whose names end in .en.
        del generation["lang_to_id"], generation["task_to_id"]
        generation["forced_decoder_ids"] = [[1, ids["<|notimestamps|>"]]]
    write_json(directory / "generation_config.json", generation)
    frames = tiny.max_source_positions * FRAMES_PER_POSITION
    samples = {
        "feature_size": tiny.num_mel_bins,
        "chunk_length": frames // _FRAMES_PER_SECOND,
        "n_samples": frames * 160,
        "nb_max_frames": frames,
    }
    preprocessor = shrunk(published.config("preprocessor_config.json"), samples)
    preprocessor["mel_filters"] = slaney_bands(tiny.num_mel_bins, preprocessor["n_fft"]).tolist()
    (directory / "preprocessor_config.json").write_text(json.dumps(preprocessor), encoding="utf-8")


def _write_weights(directory: Path, unused: list[int], seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    from sglang_omni.models.whisper.components.networks import WhisperDecoder, WhisperEncoder

    shape = WhisperCheckpoint.from_dir(directory).shape
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    parts: dict[str, torch.nn.Module] = {"encoder": WhisperEncoder(shape), "decoder": WhisperDecoder(shape)}
    for part, module in parts.items():
        for name, parameter in module.named_parameters():
            if name == "embed_tokens.weight":
                used = torch.ones(shape.vocab_size, dtype=torch.bool)
                used[unused] = False
                table = torch.zeros(parameter.shape)
                table[used] = _weight(name, (int(used.sum()), shape.hidden_size), generator)
                tensors[f"model.{part}.{name}"] = table
            else:
                tensors[f"model.{part}.{name}"] = _weight(name, parameter.shape, generator)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _weight(name: str, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    import torch

    drawn = torch.randn(tuple(shape), generator=generator)
    if "norm" in name:
        return 1.0 + 0.1 * drawn if name.endswith("weight") else 0.1 * drawn
    if "embed" in name:
        return (_TOKEN_STD if "tokens" in name else _PLACE_STD) * drawn
    if drawn.dim() == 1:
        return 0.1 * drawn
    fan_in = drawn[0].numel()
    gain = next((gain for part, gain in _GAINS.items() if part in name), 1.5)
    return gain * drawn / fan_in**0.5
