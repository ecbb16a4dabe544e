"""A server without disk space or descriptors says so, and that another try may do."""

from __future__ import annotations

import errno
import json
import os

import pytest

from sglang_omni.serve.front.errors import error_response


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_what_another_try_may_find_gone(number: int) -> None:
    answer = error_response(OSError(number, os.strerror(number), "/tmp/upload"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    error = json.loads(answer.body)["error"]
    assert error["code"] == "service_unavailable"
    assert error["message"] == f"the server is out of room: {os.strerror(number)}"


def test_what_none_will() -> None:
    answer = error_response(OSError(errno.EIO, "broken"))
    assert answer.status_code == 500
    assert "retry-after" not in answer.headers
