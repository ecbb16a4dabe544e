"""How many replicas a load calls for, over time, and how many requests they get."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sglang_omni.config.schema import AutoscalingConfig
from sglang_omni.pipeline.processes.scaling import AdmissionPolicy, ScalingPolicy

LOADS = st.one_of(st.integers(0, 200), st.floats(0, 200))
STEPS = st.floats(0.01, 20)


@st.composite
def configs(draw: st.DrawFn) -> AutoscalingConfig:
    least = draw(st.integers(1, 5))
    return AutoscalingConfig(
        min_replicas=least,
        max_replicas=draw(st.integers(least, least + 8)),
        target_ongoing_requests=draw(st.floats(0.25, 20)),
        upscale_delay_s=draw(st.floats(0, 30)),
        downscale_delay_s=draw(st.floats(0, 30)),
    )


def called_for(config: AutoscalingConfig, load: float) -> int:
    wanted = math.ceil(load / config.target_ongoing_requests)
    return sorted((config.min_replicas, wanted, config.max_replicas))[1]


def numbers(policy: ScalingPolicy, *spells: tuple[float, float], start: float = 0.0) -> list[int]:
    """What the policy says each quarter of a second of a load held for some seconds, and of the next ones."""
    said, now = [], start
    for load, seconds in spells:
        for _ in range(int(seconds * 4)):
            said.append(policy.observe(load, now))
            now += 0.25
    return said


@given(configs(), st.lists(st.tuples(LOADS, STEPS), max_size=60))
def test_the_number_is_within_the_limits_whatever_the_load(
    config: AutoscalingConfig, looks: list[tuple[float, float]]
) -> None:
    policy, now = ScalingPolicy(config), 0.0
    for load, step in looks:
        assert config.min_replicas <= policy.observe(load, now) <= config.max_replicas
        now += step


@given(configs(), st.lists(st.tuples(LOADS, STEPS), max_size=30), LOADS, STEPS)
def test_under_a_load_that_stays_the_number_gets_there_and_stays(
    config: AutoscalingConfig, looks: list[tuple[float, float]], load: float, step: float
) -> None:
    policy, now = ScalingPolicy(config), 0.0
    for earlier, pause in looks:
        policy.observe(earlier, now)
        now += pause
    # What earlier loads called for may come first.
    end = now + 2 * max(config.upscale_delay_s, config.downscale_delay_s) + 3 * step
    said = [policy.replicas]
    while now <= end:
        said.append(policy.observe(load, now))
        now += step
    assert said[-1] == called_for(config, load)
    assert said in (sorted(said), sorted(said, reverse=True))


@given(configs(), st.lists(LOADS, min_size=1, max_size=60), st.floats(0.01, 1))
def test_nothing_changes_before_the_delay_is_over(
    config: AutoscalingConfig, loads: list[float], step: float
) -> None:
    policy = ScalingPolicy(config)
    since: dict[bool, float | None] = {True: None, False: None}
    for index, load in enumerate(loads):
        now, before, wanted = index * step, policy.replicas, called_for(config, load)
        for is_more in (True, False):
            if wanted != before and (wanted > before) == is_more:
                since[is_more] = now if since[is_more] is None else since[is_more]
            else:
                since[is_more] = None
        after = policy.observe(load, now)
        if after != before:
            began = since[after > before]
            assert began is not None
            delay = config.upscale_delay_s if after > before else config.downscale_delay_s
            assert now - began >= delay
            since = {True: None, False: None}


CONFIG = AutoscalingConfig(
    min_replicas=1, max_replicas=4, target_ongoing_requests=2, upscale_delay_s=1, downscale_delay_s=5
)


def test_replicas_are_added_after_the_delay_and_leave_after_theirs() -> None:
    said = numbers(ScalingPolicy(CONFIG), (6, 3), (2, 10))
    assert said == [1] * 4 + [3] * 28 + [1] * 20


def test_a_peak_or_a_pause_changes_nothing() -> None:
    assert set(numbers(ScalingPolicy(CONFIG), (2, 1), (100, 0.75), (2, 1), (100, 0.75), (0, 1))) == {1}
    policy = ScalingPolicy(CONFIG)
    numbers(policy, (8, 2))
    assert set(numbers(policy, (0, 4.75), (8, 0.25), (0, 4.75), (7, 1), start=2)) == {4}


def test_what_counts_is_the_least_that_was_called_for_or_the_most() -> None:
    assert numbers(ScalingPolicy(CONFIG), (100, 0.5), (3, 0.25), (100, 0.5))[-1] == 2
    policy = ScalingPolicy(CONFIG)
    numbers(policy, (8, 2))
    assert numbers(policy, (0, 2), (5, 0.25), (0, 3), start=2)[-1] == 3


def test_replicas_get_more_once_it_is_sure_that_they_could_begin_with_it() -> None:
    policy = AdmissionPolicy(target=2)
    # All that they had is answered at once, and as many come, which they do not tell of at once.
    full = (True, False, False, True, False, False, False, False)
    assert [policy.observe(1, 5, are_full=each) for each in full] == [5, 5, 5, 5, 5, 5, 10, 10]
    # One more of them has nothing to begin with.
    assert [policy.observe(replicas, 5, are_full=replicas == 1) for replicas in (1, 2)] == [5, 10]


def test_replicas_may_have_what_they_are_meant_to_have() -> None:
    policy = AdmissionPolicy(target=1.5)
    assert [policy.observe(3, requests, are_full=True) for requests in (0, 5, 7)] == [5, 5, 7]
    assert AdmissionPolicy(target=1.5).observe(3, 0, are_full=False) == 10
