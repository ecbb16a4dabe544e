"""The stages: text to a prompt, the prompt to codes, and codes to sound while they come."""

from collections.abc import Callable, Iterator

import torch

from my_family.model import LETTERS, MyFamilyVocoder, decoder_spec, load_vocoder, read_config
from sglang_omni.engines import EngineOptions, EngineRequest, RequestSampling, build_engine
from sglang_omni.engines.options import EngineKind
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler
from sglang_omni.scheduling.stream_scheduler import StreamScheduler, StreamSession
from sglang_omni.tasks import AudioChunk, AudioResult, SpeechRequest

# Sampling parameters of a request that sets none.
DEFAULTS = {"temperature": 0.8, "max_new_tokens": 256}


def create_preprocess(max_letters: int = 1024) -> Callable[[StagePayload], dict]:
    def preprocess(payload: StagePayload) -> dict:
        letters = list(SpeechRequest.of(payload).text.encode())
        if not 0 < len(letters) <= max_letters:
            message = f"input has {len(letters)} bytes to speak; 1 to {max_letters} are accepted"
            raise RequestError(message, param="input", code="invalid_value")
        return {"prompt": letters}

    return preprocess


def create_decoder(
    model_path: str,
    engine: EngineKind | None = None,
    num_threads: int | None = None,
    gpu_id: int | None = None,
    max_running_requests: int = 16,
    max_total_tokens: int = 16_384,
    chunked_prefill_size: int = 512,
) -> OmniScheduler:
    """An engine that batches, caches and samples. Its options are arguments, so that flags reach them."""
    spec = decoder_spec(model_path)
    options = EngineOptions(
        device="cpu" if gpu_id is None else f"cuda:{gpu_id}",
        num_threads=num_threads,
        max_running_requests=max_running_requests,
        max_total_tokens=max_total_tokens,
        chunked_prefill_size=chunked_prefill_size,
    )
    ends = spec.config.eos_token_ids

    def codes(tokens: list[int]) -> list[int]:
        return [token - LETTERS for token in tokens if token not in ends]

    def request(payload: StagePayload) -> EngineRequest:
        given = {name: value for name, value in payload.request.params.items() if value is not None}
        sampling = RequestSampling.from_params({**DEFAULTS, **given})
        return EngineRequest(payload.request_id, payload.data["prompt"], sampling)

    def stream(payload: StagePayload, request: EngineRequest, new_tokens: list[int]) -> list[OutgoingMessage]:
        new = codes(new_tokens)
        return [OutgoingMessage(payload.request_id, "stream", {"codes": new}, "voice")] if new else []

    def result(payload: StagePayload, request: EngineRequest) -> StagePayload:
        written, read = len(request.output_token_ids), len(request.prompt_token_ids)
        data = {
            "finish_reason": request.finish_reason,
            "usage": {"prompt_tokens": read, "completion_tokens": written},
        }
        return StagePayload(payload.request_id, payload.request, data)

    return OmniScheduler(build_engine(engine, spec, options), request, result, stream)


class VoiceSession(StreamSession):
    """One request: it makes sound of every few codes, and keeps what has come."""

    def __init__(self, model: MyFamilyVocoder, sample_rate: int, chunk: int) -> None:
        self.model, self.sample_rate, self.chunk = model, sample_rate, chunk
        self.codes: list[int] = []
        self.spoken = 0
        self.sound = [torch.zeros(0)]
        self.fields: dict = {}

    def begin(self, payload: StagePayload) -> Iterator[AudioChunk]:
        self.fields = payload.data
        return iter(())

    def feed(self, data: dict) -> Iterator[AudioChunk]:
        self.codes += data["codes"]
        return self.speak(self.chunk)

    def end(self) -> Iterator[AudioChunk]:
        return self.speak(1)

    def speak(self, least: int) -> Iterator[AudioChunk]:
        if len(self.codes) - self.spoken >= least:
            new = torch.tensor(self.codes[self.spoken :])
            before = torch.tensor(self.codes[: self.spoken][-1:], dtype=torch.long)
            self.sound.append(self.model(new, before))
            self.spoken = len(self.codes)
            yield AudioChunk(audio_data=self.sound[-1], sample_rate=self.sample_rate)

    def result(self) -> AudioResult:
        codes = [[code] for code in self.codes]
        sound = torch.cat(self.sound)
        return AudioResult(audio_data=sound, sample_rate=self.sample_rate, codes=codes, **self.fields)


def create_voice(model_path: str, chunk: int) -> StreamScheduler:
    model, rate = load_vocoder(model_path), read_config(model_path)["sample_rate"]
    return StreamScheduler(
        lambda: VoiceSession(model, rate, chunk),
        expects_stream=lambda payload: True,
        wants_chunks=lambda payload: bool(payload.request.params.get("stream")),
    )
