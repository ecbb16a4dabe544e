"""The state that all routes share: the client, the model's name and abilities, metrics and limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.client import Client
from sglang_omni.config.draw.graph import PipelineGraph
from sglang_omni.config.nearest import nearest
from sglang_omni.generation.local import LocalTransport
from sglang_omni.generation.transport import Transport
from sglang_omni.preprocessing.request_params import RequestParams, TaskParams, check_params
from sglang_omni.preprocessing.voice_blends import voice_parts
from sglang_omni.proto import RequestError
from sglang_omni.proto.tasks import EncodedVoice, Granularity
from sglang_omni.random_weights import has_random_weights
from sglang_omni.serve.coordinator import AdminCoordinator, admin_coordinator, transport_of
from sglang_omni.serve.front.admission import Admission
from sglang_omni.serve.front.bodies import JsonBodies, JsonLimits
from sglang_omni.serve.front.request_ids import RunningRequests
from sglang_omni.serve.front.session import owner_of
from sglang_omni.serve.front.warnings import warn
from sglang_omni.serve.front.websockets import OpenWebSockets
from sglang_omni.serve.kept_voices import KeptVoice, KeptVoices
from sglang_omni.serve.metrics import Metrics
from sglang_omni.serve.observe.history import History
from sglang_omni.serve.prompts import Prompts
from sglang_omni.serve.realtime.client_secrets import ClientSecrets
from sglang_omni.serve.realtime.ice import NO_ICE_SERVERS, IceServers
from sglang_omni.serve.realtime.sessions import Sessions
from sglang_omni.serve.responses_store import ResponseStore
from sglang_omni.serve.voice_names import OPENAI_VOICES

DEFAULT_MODEL_NAME = "sglang-omni"


@dataclass(frozen=True)
class Capabilities:
    """What a pipeline can do, as its config says in ``serves``, or its class in attributes of these names.

    None: not declared, so nothing is refused for it. Names of voices are compared without regard to case.

    Attributes:
        word_times: What the words of its sound are, of which it tells the times; None: it does not.
        default_voice: What speaks in the place of OpenAI's names; None: they are refused as any other.
        voice_blends: True if a voice may be a blend of several, as of ``preprocessing.voice_blends``.
        adapters: The directories of LoRA adapters, by name.
        chat_prompts: Loads the model's tokenizer and chat template, without its weights.
        max_model_len: The most tokens of a prompt and its answer.
        hears_streams: True if the sound of a transcription may come while it runs.
        duplex: True if it listens while it speaks, in realtime sessions.
        random_weights: True if what the model says means nothing.
    """

    tasks: frozenset[str] | None = None
    input_modalities: frozenset[str] | None = None
    output_modalities: frozenset[str] | None = None
    voices: frozenset[str] | None = None
    default_voice: str | None = None
    voice_blends: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict)
    spoken_languages: frozenset[str] | None = None
    word_times: Granularity | None = None
    stages: frozenset[str] | None = None
    request_params: RequestParams | None = None
    chat_prompts: Callable[[], ChatPrompts] | None = None
    max_model_len: int | None = None
    hears_streams: bool = False
    duplex: bool = False
    random_weights: bool = False

    @classmethod
    def of(cls, config: Any) -> Capabilities:
        """The capabilities that a PipelineConfig declares, and the names of its stages."""

        serves = getattr(config, "serves", None)

        def listed(name: str) -> tuple[str, ...] | None:
            values: Iterable[str] | None = getattr(serves, name, None)
            if values is None:
                values = getattr(config, name, None)
            return None if values is None else tuple(values)

        def declared(name: str) -> frozenset[str] | None:
            values = listed(name)
            return None if values is None else frozenset(values)

        voices = listed("voices")
        return cls(
            tasks=declared("tasks"),
            input_modalities=declared("input_modalities"),
            output_modalities=declared("output_modalities"),
            voices=None if voices is None else frozenset(voice.lower() for voice in voices),
            default_voice=voices[0] if voices else None,
            voice_blends=getattr(config, "voice_blends", False),
            adapters=getattr(config, "adapters", {}),
            spoken_languages=declared("spoken_languages"),
            word_times=getattr(serves, "word_times", None) or getattr(config, "word_times", None),
            stages=frozenset(stage.name for stage in config.stages),
            request_params=getattr(config, "request_params", None),
            chat_prompts=getattr(config, "chat_prompts", None),
            max_model_len=getattr(config, "max_model_len", None),
            hears_streams="transcription" in (listed("tasks") or ()) and config.input_stage is not None,
            duplex="duplex" in (listed("tasks") or ()) and config.input_stage is not None,
            random_weights=has_random_weights(getattr(config, "model_path", None) or ""),
        )


@dataclass
class AppState:
    """
    Attributes:
        model_name: The one model served; None accepts any name.
        aliases: Further names of it.
        info: Gives further fields of ``/get_server_info``.
        request_timeout: Seconds that a request may take; None: any.
        running: The ids of the requests under way.
        bodies: Reads JSON bodies.
        started: Unix time.
        responses: The responses that are kept.
        transport: Where requests are answered.
        coordinator: Reports load and flushes caches.
        prompts: The model's tokenizer.
        history: The latest requests.
        traces_steps: True if requests are traced with their steps, also if no profile runs.
        graph: The pipeline, to be drawn; None if it is not known.
        strict_params: True if fields of no effect are refused, of which an answer else only warns.
        ice_servers: Help clients of other networks to reach calls over WebRTC.
        voices: Those that clients upload; None: none are kept.
    """

    client: Client
    model_name: str | None = None
    aliases: Sequence[str] = ()
    capabilities: Capabilities = field(default_factory=Capabilities)
    info: Callable[[], dict[str, Any]] = dict
    request_timeout: float | None = None
    admission: Admission = field(default_factory=Admission)
    metrics: Metrics = field(default_factory=Metrics)
    running: RunningRequests = field(default_factory=RunningRequests)
    client_secrets: ClientSecrets = field(default_factory=ClientSecrets)
    realtime: Sessions = field(default_factory=Sessions)
    websockets: OpenWebSockets = field(default_factory=OpenWebSockets)
    bodies: JsonBodies = field(default_factory=lambda: JsonBodies(JsonLimits()))
    started: float = field(default_factory=time.time)
    traces_steps: bool = False
    graph: PipelineGraph | None = None
    strict_params: bool = False
    ice_servers: IceServers = NO_ICE_SERVERS
    voices: KeptVoices | None = None
    responses: ResponseStore = field(default_factory=ResponseStore)
    transport: Transport = field(init=False)
    coordinator: AdminCoordinator = field(init=False)
    prompts: Prompts = field(init=False)
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = Prompts(self.capabilities.chat_prompts)
        self.transport = transport_of(self.client)
        self.coordinator = admin_coordinator(self.client)
        self.coordinator.trace_steps(self.traces_steps)
        self.coordinator.watch_visits(
            lambda visit: self.metrics.stage_visited(visit.instance, visit.work, visit.wait)
        )
        if isinstance(self.transport, LocalTransport):
            self.transport.must_answer = True
        self.observe(History(self.metrics, self.running))

    def observe(self, history: History) -> None:
        """Have this history follow the requests from now on."""
        self.history = history
        if isinstance(self.transport, LocalTransport):
            self.transport.observer = history

    @property
    def served_name(self) -> str:
        return self.model_name or DEFAULT_MODEL_NAME

    @property
    def served_names(self) -> tuple[str, ...]:
        """All names of the model, and of its adapters."""
        return (self.served_name, *self.aliases, *self.capabilities.adapters)

    def timeout(self, own: float | None) -> float | None:
        """Seconds that a request may take: the timeout of its body, at most the server's."""
        if own is None or self.request_timeout is None:
            return own or self.request_timeout
        return min(own, self.request_timeout)

    def check_model(self, model: str | None) -> str:
        """The name of the model for the answer.

        Raises:
            RequestError: 404: another model is served here.
        """
        if model is None:
            return self.served_name
        base, _, adapter = model.rpartition(":")
        if (
            self.model_name is None
            or model in self.served_names
            or (adapter in self.capabilities.adapters and base in (self.served_name, *self.aliases))
        ):
            return model
        raise RequestError(
            f"model {model!r} is not served here; this server has {_listed(map(repr, self.served_names))}",
            param="model",
            code="model_not_found",
            status=404,
        )

    def check_task(self, task: str, param: str | None = None) -> None:
        """``param``: the field that asks for it, if the request as a whole does not."""
        tasks = self.capabilities.tasks
        if tasks is not None and task not in tasks:
            way = "; it listens while it speaks: open a session at /v1/realtime"
            hint = way if self.capabilities.duplex else ""
            raise RequestError(
                f"the model {self.served_name!r} does not do {task}; it does {_listed(tasks)}{hint}",
                param=param,
                code="unsupported_task",
            )

    def check_input(self, modality: str, param: str) -> None:
        self._check(
            self.capabilities.input_modalities, modality, param, f"takes no {modality} input; it takes"
        )

    def check_output(self, modality: str, param: str) -> None:
        self._check(
            self.capabilities.output_modalities, modality, param, f"gives no {modality} output; it gives"
        )

    def kept_voice(self, voice: str | None, owner: str | None) -> KeptVoice | None:
        """The owner's kept voice of a name or an id; None if there is none.

        Raises:
            Unavailable: The folder of voices cannot be read.
        """
        return None if voice is None or self.voices is None else self.voices.find(voice, owner)

    def encoded_voice(self, voice: str | None, param: str, owner: str | None) -> EncodedVoice | None:
        """What the model reads of the owner's kept voice of a name or an id; None if there is none.

        Raises:
            RequestError: As ``usable_voice``, or its file cannot be read.
            Unavailable: The folder of voices cannot be read.
        """
        kept = self.usable_voice(voice, param, owner)
        return None if kept is None or self.voices is None else self.voices.load(kept)

    def usable_voice(self, voice: str | None, param: str, owner: str | None) -> KeptVoice | None:
        """The owner's kept voice of a name or an id; None if there is none.

        Raises:
            RequestError: Another model has encoded it.
            Unavailable: The folder of voices cannot be read.
        """
        kept = self.kept_voice(voice, owner)
        if kept is not None and self.voices is not None and not self.voices.reads(kept):
            raise RequestError(
                f"{param}: {kept.name!r} was encoded by another model than {self.served_name!r}; upload its "
                "recording to this one, under another name or once that voice is deleted",
                param=param,
                code="unsupported_value",
            )
        return kept

    def voice_names(self, owner: str | None) -> list[str]:
        """The names that ``voice`` may have: the model's own, and those of the owner's kept voices.

        Raises:
            Unavailable: The folder of voices cannot be read.
        """
        kept = [] if self.voices is None else filter(self.voices.reads, self.voices.of_owner(owner))
        return sorted({*(self.capabilities.voices or ()), *(voice.name for voice in kept)})

    def check_voice(self, voice: str | None, param: str, owner: str | None = None) -> str | None:
        """The voice to speak with; None if the request names none.

        Of OpenAI's names, which clients send to any model, those that the model does not have stand for its
        default voice. The answer then has a warning.

        Args:
            owner: Whose kept voices are listed, too, if the model has no such voice.

        Raises:
            RequestError: The model has no such voice.
        """
        own, default = self.capabilities.voices, self.capabilities.default_voice
        if voice is None or own is None or voice.lower() in own:
            return voice
        if default is not None and voice.lower() in OPENAI_VOICES and not self.strict_params:
            warn(f"this model has no voice {voice!r}, one of OpenAI's: its default voice {default!r} speaks")
            return default
        known = self.voice_names(owner)
        shared = "" if self.voices is None else " here (servers that share --voices-dir have the same ones)"
        names = [voice.lower()]
        if self.capabilities.voice_blends:
            names = [part.name for part in voice_parts(voice, param)]
        for name in names:
            self._check(known, name, param, f"has no voice {name!r}{shared}; it has")
        return voice

    def check_word_times(self, param: str) -> Granularity:
        """What the pipeline tells the times of.

        Raises:
            RequestError: Nothing.
        """
        if (known := self.capabilities.word_times) is None:
            raise RequestError(
                f"{param}: the model {self.served_name!r} does not tell when it speaks which word; leave it "
                "out, or send the sound to /v1/audio/transcriptions of a model that hears",
                param=param,
                code="unsupported_parameter",
            )
        return known

    def _check(self, allowed: Collection[str] | None, value: str, param: str, text: str) -> None:
        if allowed is not None and value not in allowed:
            raise RequestError(
                f"{param}: the model {self.served_name!r} {text} {_listed(allowed)}",
                param=param,
                code="unsupported_value",
            )

    def takes(self, task: str, param: str) -> bool:
        """True if a parameter may have an effect on a task."""
        takes = self.capabilities.request_params
        return takes is None or param in takes.get(task, TaskParams()).general

    def ignore(self, param: str, why: str, instead: str = "it is ignored") -> None:
        """Have the answer warn that a field has no effect, where that does no harm.

        Args:
            why: It has none, and maybe what to do about it.
            instead: What is done in its place.

        Raises:
            RequestError: The server is strict, or the answer has no place for a warning.
        """
        if self.strict_params or not warn(f"{param}: {why}; {instead}"):
            raise RequestError(f"{param}: {why}; leave it out", param=param, code="unsupported_parameter")

    def check_params(
        self,
        task: str,
        params: Mapping[str, Any],
        stage_params: dict[str, dict[str, Any]] | None,
        *,
        spoken: bool = False,
    ) -> None:
        """Refuse parameters beyond OpenAI's that this pipeline has no use for.

        Args:
            task: "chat", "completion", "speech", "transcription" or "translation".
            params: The request's parameters, by the names that stages know them by.
            stage_params: The request's parameters for single stages, by stage name.
            spoken: True if the answer will be spoken.

        Raises:
            RequestError: The pipeline or the stage does not take a parameter, or there is no such stage.
        """
        self._check_stages(stage_params)
        takes = self.capabilities.request_params
        if takes is not None:
            check_params(task, {**params, "stage_params": stage_params}, takes, spoken=spoken)

    def _check_stages(self, stage_params: dict[str, Any] | None) -> None:
        stages = self.capabilities.stages
        for stage in stage_params or {}:
            if stages is not None and stage not in stages:
                near = nearest(stage, stages)
                hint = f"did you mean {near!r}?" if near else f"the stages are {_listed(stages)}"
                raise RequestError(
                    f"stage_params: no stage {stage!r}; {hint}",
                    param=f"stage_params.{stage}",
                    code="unknown_parameter",
                )


async def request_id_of(request: HTTPConnection, given: str | None) -> str:
    """Register a request that is about to run, and return its id.

    Args:
        request: Its header may give an id; a WebSocket has one, too.
        given: The id in its body, which counts before the header's.

    Raises:
        RequestError: ``given`` is the id of another running request.
    """
    running: RunningRequests = request.app.state.server.running
    name = request.state.request_name
    name.owner = owner_of(request)
    request_id = await running.admit(name, given)
    request.state.request_id = request_id
    return request_id


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
