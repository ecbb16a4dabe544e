"""More requests than a server holds: a bounded number runs and waits, and the rest is refused at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from served_process import ServedProcess
from shouting_server import CONFIG, launch, shout
from waiting import wait_until

__all__ = ["launch"]  # the fixture

SENT = 60


@pytest.mark.parametrize(
    ("flags", "held", "announced"),
    [
        ((), 12, "shouting holds 4 requests at once (upper 3, answer 1), 8 more wait up to 900 s"),
        pytest.param(
            ("--dp-size", "2"),
            24,
            "The fleet holds 8 requests at once, more wait in its router",
            marks=pytest.mark.long,
        ),
    ],
    ids=["server", "fleet"],
)
def test_what_is_too_much_is_refused_and_the_rest_is_done(
    launch: Callable[..., ServedProcess], tmp_path: Path, flags: tuple[str, ...], held: int, announced: str
) -> None:
    config = CONFIG.replace("served_stages.upper,", "served_stages.upper_by_three,")
    limits = ("--max-concurrent-requests", "4", "--queue-size", "8", "--queue-timeout", "900")
    server = launch(*limits, *flags, config=config)
    url = server.base_url
    assert announced in server.text
    with ThreadPoolExecutor(SENT) as clients:
        sent = [clients.submit(shout, url, "wait") for _ in range(SENT)]
        # Nothing is answered until all that are too many have been refused.
        wait_until(lambda: sum(each.done() for each in sent) == SENT - held, lambda: server.text)
        refused = [each.result() for each in sent if each.done()]
        assert {answer.status_code for answer in refused} == {429}
        assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
        assert httpx.get(f"{url}/health").status_code == 200
        (tmp_path / "release").touch()
        statuses = Counter(each.result().status_code for each in sent)
    assert statuses == {200: held, 429: SENT - held}
    assert load_of(url) == 0


def load_of(url: str) -> int:
    workers = httpx.get(f"{url}/workers")
    if workers.status_code == 404:
        return int(httpx.get(f"{url}/get_load").json()["num_reqs"])
    return sum(worker["load"] for worker in workers.json()["workers"])
