"""Multipart forms: how many parts they may have, and where their files are kept."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglang_omni.serve.front.limits import BodyLimits
from sglang_omni.serve.routes.forms import MAX_FIELD_SIZE, MAX_FIELDS, MAX_FILES
from sglang_omni.serve.state import Capabilities

PATH = "/v1/audio/transcriptions"


def test_an_upload_needs_no_disk(serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A full disk, or none, is nothing to a server that writes nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    recording = bytes(range(256)) * 40_000
    with (
        serve(Capabilities(), "own", max_body_size=BodyLimits.max_body_size) as (pipeline, base_url),
        httpx.Client(base_url=base_url, trust_env=False, timeout=60) as http,
    ):
        answer = http.post(PATH, files={"file": recording})
        assert answer.status_code == 200, answer.text
        assert pipeline.last.inputs["audio"] == recording


@pytest.mark.parametrize(
    ("files", "data", "said"),
    [
        ({}, {f"f{index}": "x" for index in range(2000)}, f"Maximum number of fields is {MAX_FIELDS}"),
        ({f"f{index}": b"x" for index in range(1000)}, {}, f"Maximum number of files is {MAX_FILES}"),
        ({}, {"prompt": "x" * (MAX_FIELD_SIZE + 1)}, "exceeded maximum size of 64KB"),
        ({}, {"n" * 10_000: "x"}, "not a valid multipart form"),
    ],
)
def test_parts_of_a_form_are_bounded(
    serve: Any, files: dict[str, bytes], data: dict[str, str], said: str
) -> None:
    with (
        serve(Capabilities(), "own", max_body_size=BodyLimits.max_body_size) as (pipeline, base_url),
        httpx.Client(base_url=base_url, trust_env=False, timeout=60) as http,
    ):
        answer = http.post(PATH, files={**files, "file": b"RIFF"}, data=data)
        assert answer.status_code == 400
        assert len(answer.content) < 4096
        error = answer.json()["error"]
        assert error["code"] == "invalid_form"
        assert said in error["message"]
        assert pipeline.requests == []


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"timeout": "nan"}, "timeout"),
        ({"timeout": "9" * 400}, "timeout"),
        ({"model": "m" * 5000}, "model"),
        ({"request_id": "a b"}, "request_id"),
        ({"timings": "maybe"}, "timings"),
        ({"timestamp_granularities[]": ["segment"] * 9}, "timestamp_granularities"),
        ({"x" * 3000: "y"}, "x" * 256 + "..."),
    ],
)
def test_odd_fields_of_a_form_are_400(http: httpx.Client, data: dict[str, Any], param: str) -> None:
    answer = http.post(PATH, files={"file": b"RIFF"}, data=data)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert len(answer.content) < 4096
