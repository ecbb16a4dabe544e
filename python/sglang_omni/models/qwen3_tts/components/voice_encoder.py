"""What Base models read of the recording of a voice: the frames of its sound, and the voice itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch

from sglang_omni.engines.cache import ItemOutput
from sglang_omni.engines.encoder import ItemInfo
from sglang_omni.models.codecs.mimi import MimiEncoder, VoiceRecording
from sglang_omni.models.qwen3_tts.components.codec_config import CodecConfig
from sglang_omni.models.qwen3_tts.components.speaker import SpeakerEncoder

_PREFIX = "encoder."
# The package's encoder sees all that came before, as its version of transformers leaves out the window of
# 10 s that the settings have.
_ALL_BEFORE = {"sliding_window": 2**30}


class RecordedVoiceEncoder:
    """An ``Encoder`` of ``VoiceRecording``s of at least ``speaker.MIN_SAMPLES``, on the host.

    An output is the recording's codes (frames, num_groups) int64, of which a last part frame is one too, and
    its voice (enc_dim,) float32.
    """

    def __init__(self, codec: MimiEncoder, num_groups: int, speaker: SpeakerEncoder) -> None:
        self._codec = codec
        self._num_groups = num_groups
        self._speaker = speaker

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype, device: str) -> Self:
        """Reads both encoders of the checkpoint in ``path``.

        Raises:
            FileNotFoundError, ValueError: A file is missing or of another codec, or a tensor is missing,
                misshapen or unknown.
        """
        config = CodecConfig.from_dir(path)
        fields = {**config.encoder, **_ALL_BEFORE}
        codec = MimiEncoder.load(config.path, _PREFIX, fields, dtype, device)
        return cls(codec, config.decoder.num_quantizers, SpeakerEncoder.load(path, dtype, device))

    def info(self, item: VoiceRecording) -> ItemInfo:
        return self._codec.info(item)

    def encode(self, items: Sequence[VoiceRecording]) -> list[ItemOutput]:
        # Later quantizers refine what earlier ones give: leaving them out changes no code.
        codes = [frames[:, : self._num_groups].contiguous() for (frames,) in self._codec.encode(items)]
        return [(frames, self._speaker(item["samples"])) for frames, item in zip(codes, items, strict=True)]
