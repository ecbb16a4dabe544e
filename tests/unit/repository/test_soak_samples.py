"""What the soak of a server says of its samples: which process grows, and what its pictures show."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "soak"))

from soak_plots import draw
from soak_samples import Sample, growths

MB = 1_000_000


def sample(
    seconds: float, *, role: str = "server", pid: int = 1, private: float = 100, **counts: int
) -> Sample:
    has = {"descriptors": 20, "threads": 4, "memfds": 2, "close_wait": 0} | counts
    return Sample(seconds, role, pid, private=int(private * MB), shared=0, cpu=0.0, **has)


def hour_of(**at: object) -> list[Sample]:
    """A sample every ten seconds; each keyword is a function of the minute."""
    return [
        sample(10.0 * number, **{name: value(number / 6) for name, value in at.items()})
        for number in range(360)
    ]


def test_what_is_level_after_the_first_third_does_not_grow() -> None:
    (growth,) = growths(
        hour_of(
            private=lambda minute: 100 + 30 * min(minute, 20),
            threads=lambda minute: 4 + (minute > 10),
            descriptors=lambda minute: 20 + int(minute * 6) % 5,
        )
    )
    assert growth.problems == []
    assert growth.minutes == pytest.approx(40, abs=0.5)


def test_memory_that_grows_by_the_limit_is_a_problem() -> None:
    slow, fast = (growths(hour_of(private=lambda minute, by=by: 100 + by * minute)) for by in (0.9, 1.1))
    assert slow[0].private == pytest.approx(0.9, abs=0.01)
    assert slow[0].problems == []
    assert fast[0].problems == ["server (1) grows by 1.10 MB a minute"]


def test_one_large_step_is_no_growth_and_many_are() -> None:
    one, many = (
        growths(hour_of(private=lambda minute, every=every: 100 + every * (minute // every)))
        for every in (33, 4)
    )
    assert one[0].problems == []
    assert many[0].private == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("name", ["descriptors", "threads", "memfds"])
def test_one_more_that_stays_is_a_problem(name: str) -> None:
    (growth,) = growths(hour_of(**{name: lambda minute: 30 + (minute > 35)}))
    assert growth.problems == [f"server (1) has 1 {name} more"]


def test_descriptors_that_are_away_with_a_killed_process_are_no_growth_when_they_are_back() -> None:
    (growth,) = growths(hour_of(descriptors=lambda minute: 20 - 3 * (30 < minute < 33)))
    assert growth.problems == []


def test_each_process_is_judged_by_its_own_life() -> None:
    killed = [sample(10.0 * n, role="io of replica 1", pid=2, private=100 + n) for n in range(20)]
    successor = [sample(200 + 10.0 * n, role="io of replica 1", pid=3) for n in range(100)]
    (growth,) = growths(killed + successor)
    assert (growth.pid, growth.problems) == (3, [])


def test_pictures_have_a_line_for_every_life_and_a_name_for_every_role(tmp_path: Path) -> None:
    samples = hour_of(private=lambda minute: 100 + minute)
    samples += [
        sample(each.seconds, role="io of replica 1", pid=2 + (each.seconds > 1800), private=2000)
        for each in samples
    ]
    files = draw(samples, tmp_path)
    names = [file.name for file in files]
    assert names == ["soak-memory.svg", "soak-growth.svg", "soak-descriptors.svg", "soak-threads.svg"]
    for file in files:
        root = ElementTree.parse(file).getroot()
        paths = list(root.iter("{http://www.w3.org/2000/svg}path"))
        assert [path.get("class") for path in paths] == ["server", "io second", "io second"]
        shown = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {"server", "io of replica 1"} <= set(shown)
