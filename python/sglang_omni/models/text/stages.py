"""The stage factories of a language model; each runs, and loads its model, in its stage's process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from sglang_omni.models.decoder.args import ChatArgs, LanguageModelArgs
from sglang_omni.models.decoder.memory import CPU_TOKENS, text_model_demand
from sglang_omni.models.decoder.options import DecoderDefaults, decoder_options
from sglang_omni.models.decoder.prompts import chat_prompts
from sglang_omni.models.loading import loading
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.engines.base import TokenEngine
    from sglang_omni.engines.options import EngineKind
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

_DEFAULTS = DecoderDefaults(16, CPU_TOKENS, 512)


def create_preprocess(model_path: str, **args: Unpack[ChatArgs]) -> SimpleScheduler:
    """The stage from messages or a prompt to token ids.

    Args:
        model_path: Directory of a checkpoint, for its tokenizer and chat template.
        args: How prompts are made.
    """
    from sglang_omni.models.text.preprocess import TextPreprocessor

    preprocessor = TextPreprocessor(chat_prompts(model_path, args))
    # Tokenizing releases the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(preprocessor, max_concurrency=4, sees_abort=True)


def create_thinker(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    lora_paths: Mapping[str, str] | None = None,
    max_loras_per_batch: int = 8,
    **args: Unpack[LanguageModelArgs],
) -> OmniScheduler:
    """The stage from token ids to the answer, in text pieces while it is written.

    Args:
        model_path: Directory of a checkpoint.
        engine: ``"sglang"``, the default on a GPU and for models that only SGLang knows, or ``"omni"``.
        tool_call_parser, reasoning_parser: As for the preprocess stage; a parser of SGLang is loaded here.
        lora_paths: Directories of LoRA adapters in PEFT's layout, by the names that requests give them.
        max_loras_per_batch: Adapters in one step, the bare model counted as one.
        args: Of its engine.

    Raises:
        ImportError: SGLang is needed, but is not installed or not of the supported version.
        FileNotFoundError, ValueError: The checkpoint or an option is wrong, or no engine knows the model.
    """
    from sglang_omni.answers.parsers import load_parsers
    from sglang_omni.models.text.thinker import TextThinker, sampling_defaults
    from sglang_omni.preprocessing.text import load_tokenizer

    load_parsers(tool_call_parser, reasoning_parser)
    adapters = dict(lora_paths or {})
    built = load_engine(
        Path(model_path), engine, args, lora_paths=adapters, max_loras_per_batch=max_loras_per_batch
    )
    thinker = TextThinker(
        load_tokenizer(model_path), sampling_defaults(Path(model_path)), built.config, adapters
    )
    return thinker.scheduler(built)


def load_engine(
    checkpoint: Path, engine: EngineKind | None, args: LanguageModelArgs, **more: Any
) -> TokenEngine:
    """The engine of a text checkpoint, with defaults by device; also for the thinkers of other pipelines.

    Args:
        checkpoint: Its directory.
        engine: As for ``create_thinker``.
        args, more: As for ``decoder_options``.

    Raises:
        ImportError: SGLang is needed, but is not installed or not of the supported version.
        FileNotFoundError, ValueError: The checkpoint or an option is wrong, or no engine knows the model.
    """
    from sglang_omni.engines.text import build_text_engine
    from sglang_omni.preprocessing.text import read_json

    fields = read_json(checkpoint / "config.json")
    chosen = decoder_options(
        _DEFAULTS,
        lambda args: text_model_demand(checkpoint, {**args, "engine": engine}),
        args,
        stored_dtype=fields.get("dtype") or fields.get("torch_dtype"),
        **more,
    )
    with loading(f"the language model from {checkpoint}, {chosen.dtype} on {chosen.device},"):
        return build_text_engine(engine, checkpoint, chosen)
