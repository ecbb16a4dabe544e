"""Every import path by which code and configs written for this system know its parts."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from sglang_omni.config import load_config
from sglang_omni.config.imports import import_string
from sglang_omni.models.qwen3_omni.config import Qwen3OmniColocatedPipelineConfig
from sglang_omni.pipeline import stage_workers
from sglang_omni.pipeline.stage.runtime import Stage

COLOCATED = "Qwen3OmniSpeechColocatedPipelineConfig"

CONFIG_NAMES = (
    "StageConfig PipelineConfig RelayConfig EndpointsConfig PlacementConfig ParallelismConfig "
    "StageRuntimeConfig StageResourceConfig SGLangServerArgsConfig ExecutorConfig InputHandlerConfig"
)
MESSAGES = (
    "SubmitMessage DataReadyMessage CompleteMessage StreamMessage AbortMessage ShutdownMessage "
    "ProfilerStartMessage ProfilerStopMessage OmniRequest StagePayload RequestState parse_message"
)
CLIENT_TYPES = (
    "GenerateRequest GenerateChunk CompletionResult CompletionAudio CompletionStreamChunk SpeechResult "
    "UsageInfo SamplingParams ClientError"
)
# Module -> what code imports from it.
PATHS = {
    "sglang_omni": "Client SyncClient",
    "sglang_omni.config": f"{CONFIG_NAMES} compile_pipeline PipelineRunner build_stage_placement_plan "
    "resolve_stage_gpu_ids build_process_topology_plan resolve_stage_factory_args load_config",
    "sglang_omni.config.schema": CONFIG_NAMES,
    "sglang_omni.proto": MESSAGES,
    "sglang_omni.proto.messages": MESSAGES,
    "sglang_omni.proto.codec": "register_type",
    "sglang_omni.scheduling.messages": "IncomingMessage OutgoingMessage Scheduler",
    "sglang_omni.scheduling.simple_scheduler": "SimpleScheduler",
    "sglang_omni.scheduling.omni_scheduler": "OmniScheduler",
    "sglang_omni.scheduling.code2wav_scheduler": "Code2WavScheduler",
    "sglang_omni.pipeline.coordinator": "Coordinator",
    "sglang_omni.pipeline.stage.runtime": "Stage",
    "sglang_omni.pipeline.stage.input": "AggregatedInput DirectInput",
    "sglang_omni.pipeline.stage.stream_queue": "StreamItem",
    "sglang_omni.pipeline.control_plane": "CoordinatorControlPlane StageControlPlane",
    "sglang_omni.pipeline.relay_io": "write_payload read_payload write_blob read_blob send_stream_chunk "
    "send_stream_signal",
    "sglang_omni.pipeline.local_dispatch": "LocalStageDispatcher",
    "sglang_omni.pipeline.mp_runner": "MultiProcessPipelineRunner",
    "sglang_omni.pipeline.runtime_config": "create_ipc_runtime_dir allocate_endpoints "
    "prepare_pipeline_runtime",
    "sglang_omni.pipeline.stage_workers": "get_stage_process_env StageGroup StageLaunchConfig WorkerSpec",
    "sglang_omni.relay": "Relay RelayOperation create_relay register_relay",
    "sglang_omni.executors": "PreprocessingExecutor EngineExecutor FusedExecutor",
    "sglang_omni.engines": "OmniEngine",
    "sglang_omni.model_runner.thinker_runner": "ThinkerModelRunner",
    "sglang_omni.model_runner.feedback_runner": "FeedbackARModelRunner",
    "sglang_omni.model_runner.feedback": "FeedbackStrategy",
    "sglang_omni.client": f"Client SyncClient {CLIENT_TYPES}",
    "sglang_omni.client.types": CLIENT_TYPES,
    "sglang_omni.client.audio": "to_numpy encode_wav encode_pcm encode_audio audio_to_base64",
    "sglang_omni.serve": "create_app",
    "sglang_omni.serve.protocol": "ChatCompletionRequest CompletionRequest SpeechRequest NativeRequest",
    "sglang_omni.launch_server": "main",
    "sglang_omni.launch_router": "main",
}


@pytest.mark.parametrize(("module", "names"), PATHS.items(), ids=list(PATHS))
def test_what_existing_code_imports_is_there(module: str, names: str) -> None:
    found = import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_each_path_can_be_the_first_one_imported() -> None:
    # A path that is a re-export must not depend on what happened to be imported before it.
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    for module in ("pipeline.relay_io", "pipeline.stage_workers", "pipeline.control_plane", "executors"):
        subprocess.run([sys.executable, "-c", code, f"sglang_omni.{module}"], check=True)


def test_lean_imports_bring_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, sglang_omni, sglang_omni.client, sglang_omni.launch_router, sglang_omni.config\n"
        "sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", [COLOCATED, f"sglang_omni.models.qwen3_omni.config.{COLOCATED}"])
def test_a_file_may_name_the_colocated_config_as_the_description_does(tmp_path: Path, name: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"config_cls: {name}\nmodel_path: some/model\n")
    loaded = load_config(file)
    assert type(loaded) is Qwen3OmniColocatedPipelineConfig
    assert {stage.process for stage in loaded.stages} == {"all"}


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        ("routing.after_preprocess", "routing.after_preprocess"),
        ("routing.terminal_stages", "routing.terminal_stages"),
        ("joining.merge_sources", "embedding_merge.merge_sources"),
        ("decode.merge_sources", "decode.merge_sources"),
    ],
)
def test_functions_that_saved_configs_of_omni_models_name_are_still_there(saved: str, now: str) -> None:
    old, new = f"sglang_omni.models.multimodal.{saved}", f"sglang_omni.models.omni.{now}"
    assert import_string(old) is import_string(new)


def test_every_route_and_projection_of_saved_configs_is_still_there() -> None:
    old, new = (import_module(f"sglang_omni.models.{room}.routing") for room in ("multimodal", "omni"))
    named = [name for name in vars(new) if name.startswith(("after_", "sources_", "terminal_", "to_"))]
    assert len(named) == 9
    assert all(getattr(old, name) is getattr(new, name) for name in [*named, "thinker_stream_ends"])


def test_a_wrong_name_of_a_path_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'StageGrup'"):
        stage_workers.StageGrup  # noqa: B018


def test_a_stage_takes_messages_by_the_descriptions_names() -> None:
    assert callable(Stage._on_data_ready)
    assert callable(Stage._on_stream_chunk)


def test_a_stage_is_built_with_the_descriptions_arguments() -> None:
    described = (
        "name role get_next gpu_id endpoints control_plane input_handler relay relay_config scheduler "
        "project_payload stream_targets get_stream_done_targets same_gpu_targets same_process_targets "
        "local_dispatcher can_accept_stream_before_payload is_terminal"
    )
    assert set(described.split()) <= signature(Stage).parameters.keys()
