"""What a pipeline says that it does for a server's callers."""

from __future__ import annotations

from typing import Literal

from sglang_omni.config.schema.strict import StrictModel
from sglang_omni.proto.tasks import Granularity, Task


class ServesConfig(StrictModel):
    """What the pipeline does for callers: the server refuses the rest by name, before a stage sees it.

    Attributes:
        tasks: Some of ``chat``, ``completion``, ``speech``, ``transcription`` and ``translation``; None: all.
        input_modalities: What chats may contain, of ``text``, ``image``, ``audio`` and ``video``; None: all.
        output_modalities: What it answers with, of ``text`` and ``audio``; None: both.
        voices: Names of its voices, in any case, the default first; None: any name.
        spoken_languages: Codes of the languages that it speaks, such as ``en``; None: any.
        word_times: What the ``words`` of its sound are, ``word`` or ``sentence``; None: it has none.
    """

    tasks: list[Task] | None = None
    input_modalities: list[Literal["text", "image", "audio", "video"]] | None = None
    output_modalities: list[Literal["text", "audio"]] | None = None
    voices: list[str] | None = None
    spoken_languages: list[str] | None = None
    word_times: Granularity | None = None
