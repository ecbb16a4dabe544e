"""docs/observability.md and the dashboard name the metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

from generated_page import load_script

from sglang_omni.proto.stats import STATS_DESCRIPTIONS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "observability.md").read_text()
SERVE = ROOT / "python/sglang_omni/serve"


def _own() -> set[str]:
    """Every metric of a server but those that stages report."""
    kept = r'\b(?:_counter|_gauge|_histogram|Tally)\(\s*"(\w+)"'
    names = set(re.findall(kept, (SERVE / "metrics.py").read_text()))
    for file in ("routes/admin.py", "metrics.py"):
        names |= set(re.findall(r'\bfamily\(\s*"(\w+)"', (SERVE / file).read_text()))
    return {f"sglang_omni_{name}" for name in names}


def test_the_table_has_every_metric() -> None:
    table = TEXT.split("<!-- metrics -->")[1].split("<!-- end -->")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.M))
    assert rows.keys() == _own()
    assert {"sglang_omni_up", "sglang_omni_stage_visits_total"} <= rows.keys()
    for name, kind in rows.items():
        assert (kind == "counter") == name.endswith("_total"), name
        assert (kind == "histogram") == name.endswith(("_seconds", "_factor")), name


def test_alerts_ask_for_metrics_that_exist() -> None:
    known = _own() | {f"sglang_omni_stage_{name}" for name in STATS_DESCRIPTIONS}
    known |= set(re.findall(r"`(sglang_omni_router_\w+)`", (ROOT / "docs/router.md").read_text()))
    alerts = re.findall(r"\{alert: .*", TEXT)
    assert len(alerts) >= 5
    for alert in alerts:
        used = {name.removesuffix("_bucket") for name in re.findall(r"sglang_omni_\w+", alert)}
        assert used, alert
        assert used <= known, used - known


def test_the_dashboard_is_what_its_script_writes() -> None:
    script = load_script("grafana_dashboard")
    assert script.FILE.read_text() == script.text(), "run scripts/grafana_dashboard.py"
