"""The tiny checkpoint's tokenizer: a byte-level BPE with Qwen3-Omni's special tokens and chat template."""

from __future__ import annotations

from sglang_omni.models.tiny.tokenizer import WordTokenizer
from sglang_omni.published import published_model

# As the published one in what it has: tools and their calls, reasoning, and a clause that skips it.
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
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages[0].role == 'system' -%}
{{- parts(messages[0].content) + '\\n\\n' -}}
{%- endif -%}
{{- 'These functions may be called:\\n<tools>' -}}
{%- for tool in tools -%}
{{- '\\n' + (tool | tojson) -}}
{%- endfor -%}
{{- '\\n</tools>\\nA call is written as\\n' -}}
{{- '<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>' -}}
{{- '<|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + parts(messages[0].content) + '<|im_end|>\\n' -}}
{%- endif -%}
{#- The last question, after which reasoning is part of the conversation. -#}
{%- set asked = namespace(at=messages | length - 1, found=false) -%}
{%- for message in messages[::-1] -%}
{%- if not asked.found and message.role == 'user' -%}
{%- set asked.at = messages | length - 1 - loop.index0 -%}
{%- set asked.found = true -%}
{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set content = parts(message.content) -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' -%}
{%- if not reasoning and '</think>' in content -%}
{%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if loop.index0 > asked.at and (loop.last or reasoning) -%}
{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- content -}}
{%- for call in message.tool_calls or [] -%}
{%- set called = call.function or call -%}
{{- '\\n' if content or not loop.first else '' -}}
{{- '<tool_call>\\n{"name": "' + called.name + '", "arguments": ' -}}
{{- called.arguments if called.arguments is string else called.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' -}}
{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' -}}
{{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""


class TinyTokenizer(WordTokenizer):
    """A ``WordTokenizer`` with the published added tokens.

    Args:
        size: Of the whole vocabulary.

    Raises:
        ValueError: ``size`` leaves no room for the roles' names, which must be one token each.
    """

    def __init__(self, size: int) -> None:
        published = published_model("qwen3_omni")
        settings = published.config("tokenizer_config.json")
        super().__init__(size - len(published.added_tokens), settings, CHAT_TEMPLATE)
