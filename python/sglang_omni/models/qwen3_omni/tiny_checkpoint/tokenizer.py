"""The tiny checkpoint's tokenizer: a byte-level BPE with Qwen3-Omni's special tokens and chat template."""

from __future__ import annotations

from sglang_omni.models.multimodal.tiny_tokenizer import WordTokenizer

# The last ids of the published vocabulary, in its order.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
_MEDIA = {
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "audio_token": "<|audio_pad|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}
CHAT_TEMPLATE = """\
{%- macro parts(content) -%}
{%- if content is string -%}
{{- content -}}
{%- else -%}
{%- for part in content -%}
{%- if part.type in ('image', 'image_url') or 'image' in part or 'image_url' in part -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.type in ('audio', 'audio_url') or 'audio' in part or 'audio_url' in part -%}
{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
{%- elif part.type == 'video' or 'video' in part -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif part.type == 'text' or 'text' in part -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + parts(message.content) + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


class TinyTokenizer(WordTokenizer):
    """A ``WordTokenizer`` with ``SPECIAL_TOKENS``.

    Raises:
        ValueError: ``size`` leaves no room for the roles' names, which must be one token each.
    """

    def __init__(self, size: int) -> None:
        settings = {**_MEDIA, "extra_special_tokens": _MEDIA, "processor_class": "Qwen3OmniMoeProcessor"}
        super().__init__(size, SPECIAL_TOKENS, CHAT_TEMPLATE, settings)
