"""Writing of tiny random checkpoints: ``make(path, seed=0, **shape)``.

Values are spread such that a greedy answer varies with every part of its prompt, and that speech is neither
silent nor clipped: with the usual initialization (0.02 throughout) answers would hardly depend on anything,
and tests would miss errors.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.qwen2_5_omni.tiny_checkpoint.shape import OmniShape
from sglang_omni.models.tiny.tokenizer import WordTokenizer, write_json
from sglang_omni.published import published_model
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    from torch import Tensor

# Whose fields are the options of ``sgl-omni make-tiny-checkpoint qwen2_5_omni``.
SHAPE = OmniShape
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if loop.first and message.role != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
{{- '<|vision_bos|><|IMAGE|><|vision_eos|>' -}}
{%- elif part.type == 'audio' or 'audio' in part or 'audio_url' in part -%}
{{- '<|audio_bos|><|AUDIO|><|audio_eos|>' -}}
{%- elif part.type == 'video' or 'video' in part -%}
{{- '<|vision_bos|><|VIDEO|><|vision_eos|>' -}}
{%- elif 'text' in part -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
VOICES = ("Chelsie", "Ethan")
_FREQUENCIES = "token2wav.code2wav_dit_model.rotary_embed.inv_freq"
# Ids behind the tokenizer's, as in published checkpoints: of the end and the padding of speech's text, and of
# each voice's beginning.
NUM_SPEECH_TOKENS = 2 + len(VOICES)
# Answers are text: as in a trained model, tokens that only prompts have are out of reach.
_UNREACHABLE = 0.02


def make(path: str | Path, seed: int = 0, *, tokenizer: WordTokenizer | None = None, **shape: int) -> Path:
    """Writes a random checkpoint with all the files of a published one.

    Args:
        path: The directory; created if it does not exist. Files of the same names are replaced.
        seed: Of the weights.
        tokenizer: None for one that is learned from some words, of the shape's ``vocab_size``.
        shape: Sizes of the model, fields of ``OmniShape``.

    Returns:
        ``path``.

    Raises:
        ValueError: The vocabulary is too small for the tokenizer.
    """
    import torch
    from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

    sizes = OmniShape(**shape)
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    published = published_model("qwen2_5_omni")
    tokenizer = tokenizer or WordTokenizer(
        sizes.vocab_size - len(published.added_tokens) - NUM_SPEECH_TOKENS,
        published.config("tokenizer_config.json"),
        CHAT_TEMPLATE,
    )
    fields = sizes.config(
        {token: tokenizer.id(token) for token in (*published.added_tokens, "user")}, len(tokenizer)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # transformers changes what it is given.
        model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**copy.deepcopy(fields))).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                _spread(name, weight)
            _quieten(model, fields, tokenizer)
        voices = _voices(sizes, len(tokenizer))
    weights = model.state_dict()
    if sizes.talker:
        # Published, although it is computed.
        weights[_FREQUENCIES] = model.token2wav.code2wav_dit_model.rotary_embed.inv_freq.clone()
    model.save_pretrained(directory, state_dict=weights, max_shard_size=f"{sizes.shard_kb}KB")
    # transformers' own, which it reads to make the model, has more than a published one.
    write_json(directory / "config.json", fields)
    for name in ("generation_config.json", "preprocessor_config.json", "special_tokens_map.json"):
        write_json(directory / name, published.config(name))
    tokenizer.write(directory, versioned=True)
    write_json(directory / "added_tokens.json", tokenizer.special)
    mark_random(directory)
    torch.save(voices, directory / "spk_dict.pt")
    return directory


def _spread(name: str, weight: Tensor) -> None:
    """Random values, by the kind of the weight."""
    if name.endswith((".alpha", ".beta")):
        weight.normal_(std=0.2)
    elif name.endswith(".bias"):
        weight.normal_(std=0.1)
    elif weight.dim() == 1:
        weight.normal_(mean=1.0, std=0.2)
    elif "embed" in name and weight.dim() == 2 and "input_embed" not in name and "time_embed" not in name:
        weight.normal_(std=1.0 if "thinker" in name else 0.7)
    else:
        fan_in = weight[0].numel() if ".ups." not in name else weight.shape[0] * 2
        gain = 2.0 if name.endswith(("lm_head.weight", "codec_head.weight")) else 1.2
        if "token2wav" in name:
            gain = 0.3 if "conv_post" in name else 0.7
        weight.normal_(std=gain / math.sqrt(fan_in))


def _quieten(model: Any, fields: dict[str, Any], tokenizer: WordTokenizer) -> None:
    """Puts special tokens out of reach of answers, and makes the end of speech rare."""
    text_ids = len(tokenizer.vocab)
    head = model.thinker.lm_head.weight
    end = head[tokenizer.id("<|im_end|>")].clone()
    head[text_ids:] *= _UNREACHABLE
    head[tokenizer.id("<|im_end|>")] = end
    if not fields["enable_audio_output"]:
        return
    talker = fields["talker_config"]
    codes = model.talker.codec_head.weight
    for token in range(fields["token2wav_config"]["dit_config"]["num_embeds"], len(codes)):
        codes[token] *= _UNREACHABLE
    # Frequent enough that some utterances end before the limit.
    codes[talker["tts_codec_end_token_id"]].normal_(std=1.5 / math.sqrt(codes.shape[1]))


def _voices(sizes: OmniShape, first: int) -> dict[str, dict[str, Any]]:
    """Each voice: the token of its beginning, its vector, and the mel frames of a recording."""
    import torch

    return {
        name: {
            "bos_token": first + 2 + index,
            "cond": torch.randn(1, sizes.speaker_dim),
            "ref_mel": torch.randn(1, 30 + 7 * index, sizes.mel_bins),
        }
        for index, name in enumerate(VOICES)
    }
