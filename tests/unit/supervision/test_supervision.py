"""Supervision of processes: restarts and their budget, exits in words."""

from __future__ import annotations

import pytest

from sglang_omni.supervision.exits import describe_exit
from sglang_omni.supervision.restarts import Restarts


def test_each_death_doubles_the_delay_up_to_half_a_minute() -> None:
    restarts = Restarts()
    assert [restarts.after_death(0.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    for _ in range(2000):
        assert restarts.after_death(0.0) == 30
    restarts.forget()
    assert restarts.after_death(0.0) == 0.5


def test_the_first_restart_may_come_at_once_and_old_deaths_are_forgotten() -> None:
    restarts = Restarts(window_s=10.0, first_at_once=True)
    assert [restarts.after_death(now) for now in (0.0, 1.0, 2.0, 10.0, 12.5)] == [0, 0.5, 1, 2, 0.5]
    assert restarts.after_death(100.0) == 0


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_budget_of_restarts_is_spent_by_one_death_more(budget: int) -> None:
    restarts = Restarts(max_restarts=budget, window_s=10.0)
    assert all(restarts.after_death(0.0) is not None for _ in range(budget))
    assert restarts.after_death(0.0) is None
    assert restarts.deaths == budget + 1


def test_exits_name_the_signal() -> None:
    assert describe_exit(3) == "exited with status 3"
    assert describe_exit(-9) == "was killed by SIGKILL (exit status -9)"
    assert describe_exit(-99) == "was killed by signal 99 (exit status -99)"
