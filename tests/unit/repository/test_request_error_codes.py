"""Every refusal has a reason that callers can test for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sglang_omni

PACKAGE = Path(sglang_omni.__file__).parent
# The codes that docs/server.md lists.
DOCUMENTED = Path(__file__).parents[3].joinpath("docs", "server.md").read_text()


def refusals() -> Iterator[tuple[str, ast.Call]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RequestError":
                yield f"{file.relative_to(PACKAGE)}:{node.lineno}", node


def code_of(call: ast.Call) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == "code"), None)


def test_every_refusal_has_a_code() -> None:
    assert [where for where, call in refusals() if code_of(call) is None] == []


def test_every_code_is_documented() -> None:
    codes = {
        constant.value
        for _, call in refusals()
        if (code := code_of(call)) is not None
        for constant in ast.walk(code)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }
    assert len(codes) > 20
    assert sorted(code for code in codes if f"`{code}`" not in DOCUMENTED) == []


@pytest.mark.parametrize(
    "code",
    ["invalid_type", "missing_required_parameter", "unknown_parameter", "unsupported_value", "invalid_json"],
)
def test_validations_codes_are_documented(code: str) -> None:
    assert f"`{code}`" in DOCUMENTED
