"""The work of all transcripts, done in batches: windows are heard, texts begun, and continued by a token."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import load_component
from sglang_omni.model_runner.sampling import Sampler, SamplingRow
from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
from sglang_omni.models.whisper.components.decoder_cache import CacheSlot, DecoderCache
from sglang_omni.models.whisper.components.networks import WhisperDecoder, WhisperEncoder
from sglang_omni.models.whisper.components.rules import Allowed, DecodingRules
from sglang_omni.scheduling.stream_scheduler import BatchItem


class WindowReading(BatchItem):
    """A wait for a window that a thread decodes. The windows of several requests are decoded together."""

    def __init__(self, window: Future[Any]) -> None:
        super().__init__("reading", 1 << 30)
        self.window = window


class Hearing(BatchItem):
    """A window to be heard, (num_mel_bins, frames) float32; afterwards ``slot`` has what was heard."""

    def __init__(self, slot: CacheSlot, features: Tensor, max_batch_size: int) -> None:
        super().__init__("hearing", max_batch_size)
        self.slot, self.features = slot, features


class LanguageGuess(BatchItem):
    """A question for the language of a window; ``language`` is its code afterwards."""

    def __init__(self, slot: CacheSlot, max_batch_size: int) -> None:
        super().__init__("language", max_batch_size)
        self.slot = slot
        self.language = ""


class ChosenToken(NamedTuple):
    """``logprob`` is that among the tokens that the rules allow."""

    token: int
    logprob: float


@dataclass(eq=False)
class Beginning(BatchItem):
    """The first tokens of a text, and the choice of the next.

    Attributes:
        tokens: From position 0.
        start: The index in ``tokens`` of the start token, after which the model marks silence.
        chosen: The next token, afterwards.
        no_speech: The probability of silence, afterwards.
    """

    slot: CacheSlot
    tokens: list[int]
    start: int
    allowed: Allowed
    draw: SamplingRow
    chosen: ChosenToken | None = None
    no_speech: float = 0.0


@dataclass(eq=False)
class NextToken(BatchItem):
    """One more token at ``position`` of a text, and the choice of the next; ``chosen`` afterwards."""

    slot: CacheSlot
    token: int
    position: int
    allowed: Allowed
    draw: SamplingRow
    chosen: ChosenToken | None = None


@dataclass(eq=False)
class Alignment(BatchItem):
    """A look back at what the tokens of a text were written from.

    Attributes:
        tokens: From position 0.
        start: The index of the first whose attention is wanted.
        attention: (heads, len(tokens) - start, positions) float32 on the host, afterwards.
    """

    slot: CacheSlot
    tokens: list[int]
    start: int
    attention: Tensor | None = None


class WhisperModel:
    """The networks with their cache. Its methods are called by one thread.

    Args:
        num_slots: Texts written at the same time.
        times: True if times are written.

    Raises:
        FileNotFoundError, ValueError: The weights are missing, or not those of ``config.json``.
    """

    def __init__(
        self,
        checkpoint: WhisperCheckpoint,
        *,
        num_slots: int,
        times: bool,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        shape, path = checkpoint.shape, checkpoint.path
        self._encoder = load_component(path, "model.encoder.", lambda: WhisperEncoder(shape), dtype, device)
        self._decoder = load_component(path, "model.decoder.", lambda: WhisperDecoder(shape), dtype, device)
        self._dtype, self._device = dtype, torch.device(device)
        self.cache = DecoderCache(shape, num_slots, dtype, device)
        self.rules = DecodingRules(checkpoint.tokens, shape.vocab_size, times=times, device=device)
        self.tokens = checkpoint.tokens
        self._heads = checkpoint.alignment_heads
        self._sampler = Sampler()
        self._codes = list(self.tokens.languages)
        self._language_tokens = self._ints([self.tokens.languages[code] for code in self._codes])

    @torch.inference_mode()
    def compute(self, items: Sequence[Any]) -> None:
        """Does a batch: items of one class, one for a slot."""
        match items[0]:
            case WindowReading():
                wait([item.window for item in items])
            case Hearing():
                self._hear(items)
            case LanguageGuess():
                self._guess(items)
            case Beginning():
                self._begin(items)
            case NextToken():
                self._step(items)
            case Alignment():
                self._align(items)

    def _hear(self, items: Sequence[Hearing]) -> None:
        features = to_device(torch.stack([item.features for item in items]).to(self._dtype), self._device)
        self._decoder.hear(self._encoder(features), self.cache, self._slots(items))

    def _guess(self, items: Sequence[LanguageGuess]) -> None:
        tokens = self._ints([[self.tokens.start]] * len(items))
        logits = self._decoder.logits(self._decoder.prefill(tokens, self.cache, self._slots(items))[:, 0])
        for item, best in zip(items, logits[:, self._language_tokens].argmax(dim=-1).tolist(), strict=True):
            item.language = self._codes[best]

    def _begin(self, items: Sequence[Beginning]) -> None:
        hidden = self._decoder.prefill(self._filled(items), self.cache, self._slots(items))
        rows = torch.arange(len(items), device=self._device)
        last = hidden[rows, self._ints([len(item.tokens) - 1 for item in items])]
        if self.tokens.no_speech is not None:
            starts = hidden[rows, self._ints([item.start for item in items])]
            silence = self._decoder.logits(starts).softmax(dim=-1)[:, self.tokens.no_speech]
            for item, probability in zip(items, silence.tolist(), strict=True):
                item.no_speech = probability
        self._choose(last, items)

    def _step(self, items: Sequence[NextToken]) -> None:
        # Idle slots are computed as well; they write to a scratch position that nothing reads.
        tokens = [self.tokens.end] * self.cache.num_used
        places = [self.cache.scratch_position] * self.cache.num_used
        for item in items:
            tokens[item.slot.index], places[item.slot.index] = item.token, item.position
        longest = 1 + max(item.position for item in items)
        hidden = self._decoder.step(self._ints(tokens), self._ints(places), self.cache, longest)
        self._choose(hidden[self._slots(items)], items)

    def _align(self, items: Sequence[Alignment]) -> None:
        tokens, slots = self._filled(items), self._slots(items)
        found = self._decoder.attention(tokens, self.cache, slots, self._heads)
        for item, attention in zip(items, found, strict=True):
            item.attention = attention[:, item.start : len(item.tokens)].cpu()

    def _filled(self, items: Sequence[Beginning | Alignment]) -> Tensor:
        """Their tokens, filled up to one length."""
        longest = max(len(item.tokens) for item in items)
        return self._ints([item.tokens + [self.tokens.end] * (longest - len(item.tokens)) for item in items])

    def _choose(self, hidden: Tensor, items: Sequence[Beginning | NextToken]) -> None:
        """The next tokens after ``hidden`` (n, hidden_size)."""
        logits = self._decoder.logits(hidden)
        self.rules.apply(logits, [item.allowed for item in items])
        logprobs = logits.log_softmax(dim=-1)
        # Drawn without filters, so that reading corrects none.
        chosen = self._sampler.choose(logits, [item.draw for item in items]).tokens
        chosen_pairs = torch.stack([chosen.double(), logprobs.gather(1, chosen[:, None])[:, 0].double()])
        for item, token, logprob in zip(items, *chosen_pairs.tolist(), strict=True):
            item.chosen = ChosenToken(int(token), logprob)

    def _slots(self, items: Sequence[Any]) -> Tensor:
        return self._ints([item.slot.index for item in items])

    def _ints(self, numbers: Sequence[Any]) -> Tensor:
        return to_device(torch.tensor(numbers, dtype=torch.long), self._device)
