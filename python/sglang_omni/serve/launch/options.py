"""Every flag of ``sgl-omni serve``: its help, its reader, and if a fleet's replicas are given it.

A new flag is a line here. What it does is in the module that reads it out of the parsed arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.router.flags import port
from sglang_omni.serve.front.limits import BodyLimits
from sglang_omni.serve.launch.adapters import adapter, adapters_by_name
from sglang_omni.serve.launch.flags import (
    Flag,
    Reader,
    Section,
    TakesFlags,
    count,
    count_or_any,
    count_or_none,
    existing_file,
    kv_events,
    not_empty,
    origin,
    seconds,
    share,
)
from sglang_omni.serve.launch.ice import TURN_CREDENTIALS, ice_url
from sglang_omni.serve.launch.keys import ADMIN_API_KEY, API_KEY

if TYPE_CHECKING:
    from sglang_omni.cascade.part import PartName

SERVER = Section()
HEALTH = Section("health", "What hangs is found, said by /health, and started again.")
LIMITS = Section("limits", "Each of one replica. Requests beyond them are answered with 429 and Retry-After.")
KEYS = Section("keys", "A fleet's router asks for them, before its replicas.")
REACHING = Section("reaching it", "Of a fleet's router, in a fleet.")
CALLS = Section("calls over WebRTC", "How clients of other networks reach them. See docs/realtime.md.")
GPUS = Section("GPUs")
HOSTS = Section(
    "several hosts", "For stages with a `node`: each such host runs `sgl-omni host`. See docs/hosts.md."
)
RAY = Section(
    "Ray",
    "For stages that a Ray cluster places and restarts; a `node` is a custom resource then. See docs/ray.md.",
)
MODEL = Section("the model", "Each for every stage that has it; the config's own where not given.")
CASCADE = Section("a cascade", "A spoken conversation from parts, in place of a model. See docs/cascade.md.")

# The parts of a cascade.
PARTS: tuple[PartName, ...] = ("asr", "llm", "tts")

_more_than_0 = partial(seconds, above_0=True)
_of_replicas = partial(Flag, replicas=True)


def _of_stages(
    name: str, text: str, read: Reader | None = str, *, argument: str | None = None, **more: Any
) -> Flag:
    """A flag that sets an argument of stages' factories, by default of its own name."""
    return Flag(name, MODEL, text, read, argument=argument or name, replicas=True, **{"metavar": "N", **more})


def _part(name: str, takes: str, what: str) -> Iterable[Flag]:
    yield _of_replicas(name, CASCADE, what, not_empty, metavar=takes)
    yield _of_replicas(
        f"{name}_model",
        CASCADE,
        "the model to name there (default: the only one that the server lists)",
        not_empty,
        metavar="NAME",
    )
    yield _of_replicas(
        f"{name}_api_key_env",
        CASCADE,
        "the environment variable with that server's key (default: OPENAI_API_KEY, if it is set)",
        not_empty,
        metavar="VARIABLE",
    )


FLAGS: tuple[Flag, ...] = (
    _of_replicas("model_path", SERVER, "the same, as an option", not_empty, metavar="MODEL"),
    Flag(
        "revision",
        SERVER,
        "branch, tag or commit of a hub id (default: the hub's default branch)",
        not_empty,
        metavar="NAME",
    ),
    _of_replicas("config", SERVER, "the pipeline as a YAML or JSON file", Path, metavar="FILE"),
    Flag("host", SERVER, "address to listen on (default: %(default)s)", not_empty, default="127.0.0.1"),
    Flag("port", SERVER, "0 picks a free one (default: %(default)s)", port, default=8000),
    Flag(
        "dp_size",
        SERVER,
        "two or more replicas get a router in front of them (default: 1)",
        count,
        default=1,
        metavar="REPLICAS",
    ),
    _of_replicas(
        "served_model_name",
        SERVER,
        "the name requests give the model, and further ones (default: the pipeline's)",
        not_empty,
        metavar="NAME",
        several=True,
    ),
    _of_replicas(
        "api_workers",
        SERVER,
        "processes of a replica that serve HTTP; two or more where one is busy with writing tokens "
        "(default: %(default)s)",
        count,
        default=1,
        metavar="PROCESSES",
    ),
    _of_replicas(
        "start_timeout",
        SERVER,
        "a server that is not up after this long gives up (default: %(default)g)",
        partial(seconds, above_0=True, or_inf=True),
        default=600.0,
        metavar="SECONDS",
    ),
    Flag(
        "drain_timeout",
        SERVER,
        "time that requests under way have to end once SIGTERM has come (default: %(default)g)",
        partial(seconds, or_inf=True),
        default=30.0,
        metavar="SECONDS",
    ),
    _of_replicas(
        "log_level",
        SERVER,
        "what is less than this is not logged (default: info)",
        default="info",
        choices=("debug", "info", "warning", "error"),
    ),
    _of_replicas(
        "max_body_size",
        SERVER,
        "larger request bodies are refused with 413 (default: %(default)s, 64 MiB)",
        count,
        default=BodyLimits.max_body_size,
        metavar="BYTES",
    ),
    _of_replicas(
        "max_json_size",
        SERVER,
        "JSON bodies that are larger without their media, too (default: %(default)s, 8 MiB)",
        count,
        default=BodyLimits.max_json_size,
        metavar="BYTES",
    ),
    _of_replicas(
        "voices_dir",
        SERVER,
        "the folder of voices that clients upload, of a model that clones voices; made where there is none. "
        "Servers that share it have the same voices (default: none are taken)",
        Path,
        metavar="FOLDER",
    ),
    _of_replicas(
        "strict_params",
        SERVER,
        "refuse fields of requests that have no effect on the model, of which answers else only warn",
        None,
    ),
    _of_replicas(
        "otlp_traces_endpoint",
        SERVER,
        "an OpenTelemetry collector that gets the spans of every request, as OTLP over HTTP, such as "
        "http://localhost:4318/v1/traces; or set OTEL_EXPORTER_OTLP_ENDPOINT (default: no spans)",
        metavar="URL",
    ),
    _of_replicas(
        "request_timeout",
        HEALTH,
        "a request that takes longer is aborted and answered with 504, whatever `timeout` it asks for; "
        "0: it may take any time (default: %(default)g)",
        seconds,
        default=600.0,
        metavar="SECONDS",
    ),
    _of_replicas(
        "watchdog_timeout",
        HEALTH,
        "a stage that is in one step for longer is ended and started again; 0: a step may take any time "
        "(default: the config's, 300)",
        seconds,
        metavar="SECONDS",
    ),
    _of_replicas(
        "heartbeat_timeout",
        HEALTH,
        "a stage, replica or router that is silent for longer is ended and started again; 0: it is not "
        "(default: the config's, 30)",
        seconds,
        metavar="SECONDS",
    ),
    _of_replicas(
        "max_concurrent_requests",
        LIMITS,
        "requests that run at once; -1 for any number (default: what the pipeline's stages hold)",
        count_or_any,
        metavar="REQUESTS",
    ),
    _of_replicas(
        "queue_size",
        LIMITS,
        "requests beyond that which may wait for their turn; 0 for none (default: twice as many as run)",
        count_or_none,
        metavar="REQUESTS",
        also=("--max-queued-requests",),
    ),
    _of_replicas(
        "queue_timeout",
        LIMITS,
        "a request that has waited for its turn this long is refused (default: 60)",
        _more_than_0,
        metavar="SECONDS",
    ),
    Flag(
        "api_key",
        KEYS,
        f"clients must show this key, or another given so; or set {API_KEY}, which `ps` does not show",
        metavar="KEY",
        repeated=True,
        default=(),
    ),
    Flag(
        "api_key_file",
        KEYS,
        "a file with such keys, one a line; a name before a key is its tenant's, who may have several",
        Path,
        metavar="PATH",
    ),
    Flag(
        "admin_api_key",
        KEYS,
        f"the key that administers the server; or set {ADMIN_API_KEY}. Without one only clients on this "
        "machine may administer",
        metavar="KEY",
    ),
    Flag("admin_api_key_file", KEYS, "a file with that key", Path, metavar="PATH"),
    Flag(
        "allowed_hosts",
        KEYS,
        "names by which it may be administered, beside addresses, localhost and --host; * for any",
        metavar="NAME",
        several=True,
        default=(),
    ),
    Flag(
        "ssl_certfile",
        REACHING,
        "the certificate, with its chain, in PEM: clients then use https",
        Path,
        metavar="PATH",
    ),
    Flag("ssl_keyfile", REACHING, "the certificate's key, in PEM", Path, metavar="PATH"),
    Flag(
        "allowed_origins",
        REACHING,
        "origins of web pages that may use the server, as https://host:port; * for any",
        origin,
        metavar="ORIGIN",
        several=True,
        default=(),
    ),
    _of_replicas(
        "ice_server",
        CALLS,
        "one STUN server, one TURN server or both, as stun:HOST:PORT, "
        "turn:HOST:PORT?transport=udp (or tcp) or turns:HOST:PORT",
        ice_url,
        metavar="URL",
        several=True,
        default=(),
    ),
    Flag(
        "turn_credentials_file",
        CALLS,
        f"a file with the TURN server's line `USERNAME PASSWORD`; or set {TURN_CREDENTIALS} to that line",
        Path,
        metavar="PATH",
    ),
    _of_replicas(
        "mps",
        GPUS,
        "whether processes that share a GPU compute side by side, by CUDA's Multi-Process Service, and "
        "not in turns: if it can be had, always, or never (default: auto)",
        default="auto",
        choices=("auto", "on", "off"),
    ),
    Flag("join_port", HOSTS, "let hosts join here; 0 picks a free port", port, metavar="PORT"),
    Flag(
        "join_key",
        HOSTS,
        "the key that hosts join with; written where there is none (default: ~/.config/sglang_omni/join.key)",
        Path,
        metavar="FILE",
    ),
    Flag(
        "host_address",
        HOSTS,
        "this machine's address, where the others reach it (default: that of its default route)",
        metavar="ADDRESS",
    ),
    Flag(
        "host_timeout",
        HOSTS,
        "a host that is silent for so long has failed (default: 10)",
        _more_than_0,
        metavar="SECONDS",
    ),
    Flag(
        "launcher",
        RAY,
        "what starts the processes of stages: this server, or Ray (default: local)",
        default="local",
        choices=("local", "ray"),
    ),
    Flag(
        "ray_address",
        RAY,
        "HOST:PORT of the cluster, or auto for the one this machine is in (default: $RAY_ADDRESS, "
        "else auto, else a cluster is started on this machine)",
        metavar="ADDRESS",
    ),
    _of_stages("engine", "what schedules autoregressive stages", choices=("sglang", "omni")),
    _of_stages(
        "dtype",
        "what is computed in; auto: on a GPU the checkpoint's own 16 bits, on a CPU float32",
        choices=("auto", "float32", "bfloat16", "float16"),
    ),
    _of_stages(
        "quantization",
        "how SGLang quantizes, such as fp8, or reads a checkpoint that does not name it (awq, gptq, ...)",
        not_empty,
        metavar="METHOD",
    ),
    _of_stages(
        "kv_cache_dtype", "what SGLang keeps keys and values in, such as fp8_e4m3", not_empty, metavar="DTYPE"
    ),
    _of_stages(
        "attention_backend",
        "SGLang's attention kernels, such as fa3, flashinfer or triton; its choice by the GPU",
        not_empty,
        metavar="NAME",
    ),
    _of_stages(
        "disable_cuda_graph",
        "launch each kernel of a step on its own",
        None,
        argument="cuda_graph",
        sets=False,
    ),
    _of_stages(
        "disable_overlap_schedule",
        "read a step's tokens before the next step is launched, with SGLang on a GPU",
        None,
        argument="overlap_schedule",
        sets=False,
    ),
    _of_stages("context_length", "tokens of prompt and answer together", count),
    _of_stages("max_running_requests", "requests that are computed together", count),
    _of_stages("max_total_tokens", "size of the KV cache", count),
    _of_stages(
        "chunked_prefill_size", "tokens of a prompt computed in one step; -1 for all of them", count_or_any
    ),
    _of_stages("mem_fraction_static", "share of a GPU for weights and KV cache", share),
    _of_stages(
        "disable_radix_cache", "share no prefixes between requests", None, argument="prefix_cache", sets=False
    ),
    _of_stages(
        "kv_events_config",
        "publish what enters and leaves the KV cache, for routers: JSON as vLLM and SGLang take it",
        kv_events,
        metavar="JSON",
    ),
    _of_stages(
        "allowed_media_hosts",
        "hosts that media are fetched from by URL, as HOST or HOST:PORT; * for any",
        not_empty,
        metavar="HOST",
        several=True,
    ),
    _of_stages(
        "lora_paths",
        "LoRA adapters that SGLang loads, by the names that requests give as their model",
        adapter,
        metavar="NAME=PATH",
        several=True,
        join=adapters_by_name,
    ),
    _of_stages("max_loras_per_batch", "adapters that are computed together", count),
    _of_stages(
        "chat_template",
        "the file of a chat template to take instead of the checkpoint's",
        existing_file,
        metavar="FILE",
    ),
    _of_stages(
        "tool_call_parser",
        "how the model writes calls of tools, such as hermes; by default as its chat template says",
        not_empty,
        metavar="NAME",
    ),
    _of_stages(
        "reasoning_parser",
        "the marks around what the model thinks, such as qwen3; none leaves them in the answer",
        not_empty,
        metavar="NAME",
    ),
    _of_stages("tp_size", "ranks that a model is split over", count),
    _of_replicas(
        "stage",
        MODEL,
        "one stage's setting, as in thinker.gpu=0; may be given again",
        metavar="STAGE.NAME=VALUE",
        repeated=True,
        default=(),
    ),
    *_part(
        "asr",
        "URL",
        "what hears: the URL of a server with OpenAI's /v1/audio/transcriptions, or the directory or "
        "hub id of a model that transcribes (default: Whisper tiny.en)",
    ),
    *_part(
        "llm",
        "URL|MODEL",
        "what answers: the URL of a server with OpenAI's /v1/chat/completions, or the directory or hub id "
        "of a language model (default: SmolLM2)",
    ),
    *_part(
        "tts",
        "URL",
        "what speaks: the URL of a server with OpenAI's /v1/audio/speech, or the directory or hub id of a "
        "model that speaks (default: Hibari)",
    ),
    _of_replicas("tts_voice", CASCADE, "the voice of requests that name none", not_empty, metavar="NAME"),
)


def of_sections(*sections: Section) -> list[Flag]:
    """The flags of these sections, in order."""
    return [flag for flag in FLAGS if flag.section in sections]


def add_flags(
    parser: argparse.ArgumentParser, flags: Iterable[Flag] = FLAGS, *, grouped: bool = True
) -> None:
    """Adds flags to a command, in a group for each section unless they are not ``grouped``."""
    groups: dict[Section, TakesFlags] = {SERVER: parser}
    for flag in flags:
        section = flag.section if grouped else SERVER
        if section not in groups:
            groups[section] = parser.add_argument_group(section.title, section.about)
        flag.add_to(groups[section])


def passed_on(args: argparse.Namespace, flags: Iterable[Flag] = FLAGS) -> list[str]:
    """Flags as they were given, for a replica that must have the same."""
    return [word for flag in flags if flag.replicas for word in flag.words(getattr(args, flag.name))]


def given_limits(args: argparse.Namespace) -> dict[str, float]:
    """The limits of how many requests run and wait that were given, by name."""
    values = {flag.name: getattr(args, flag.name) for flag in of_sections(LIMITS)}
    return {name: value for name, value in values.items() if value is not None}
