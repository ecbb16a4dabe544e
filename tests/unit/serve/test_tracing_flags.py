"""When spans are exported, where to, and that nothing of OpenTelemetry is there when they are not."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys

import pytest

from sglang_omni.serve.launch import tracing
from sglang_omni.serve.launch.options import add_flags
from sglang_omni.serve.launch.tracing import Tracing, take_tracing


def taken(*argv: str) -> Tracing | None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return take_tracing(parser, parser.parse_args(argv))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT", "PROTOCOL", "TRACES_PROTOCOL"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


def test_the_flag_gives_the_url_for_traces() -> None:
    assert taken() is None
    for given, endpoint in (
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("http://a:4318/", "http://a:4318/v1/traces"),
        ("https://a/otlp/x", "https://a/otlp/x"),
    ):
        assert taken("--otlp-traces-endpoint", given) == Tracing(endpoint)


def test_the_environment_turns_traces_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318")
    assert taken() == Tracing(None)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert taken() is None
    monkeypatch.delenv("OTEL_TRACES_EXPORTER")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "TRUE")
    assert taken("--otlp-traces-endpoint", "http://a:4318") is None


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        (("--otlp-traces-endpoint", "a:4318"), {}, "is not an http(s) URL like http://localhost:4318"),
        (("--otlp-traces-endpoint", "grpc://a:4317"), {}, "is not an http(s) URL"),
        ((), {"ENDPOINT": "http://a", "PROTOCOL": "grpc"}, "'grpc' is not supported; use http/protobuf"),
    ],
)
def test_what_cannot_be_done_is_said(
    argv: tuple[str, ...],
    env: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    with pytest.raises(SystemExit):
        taken(*argv)
    assert words in capsys.readouterr().err


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        taken("--otlp-traces-endpoint", "http://a:4318")
    assert 'pip install "sgl-omni[otel]"' in capsys.readouterr().err


def test_a_server_without_traces_imports_nothing_of_them() -> None:
    assert importlib.util.find_spec("opentelemetry.sdk") is not None
    code = (
        "import sys\n"
        "from sglang_omni.client import Client\n"
        "from sglang_omni.serve import create_app\n"
        "import sglang_omni.serve.launch.replica, sglang_omni.launch_server\n"
        "app = create_app(Client(object()))\n"
        "assert not app.state.server.traces_steps\n"
        "names = {m.cls.__name__ for m in app.user_middleware}\n"
        "assert 'Traced' not in names and 'AdmissionMiddleware' in names, names\n"
        # FastAPI imports the API, in which nothing happens without an SDK.
        "parts = ('opentelemetry.sdk', 'opentelemetry.exporter', 'sglang_omni.serve.observe.otel')\n"
        "assert not [name for name in sys.modules if name.startswith(parts)], sys.modules\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
