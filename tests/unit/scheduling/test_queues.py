"""The queues between a scheduler's thread and the loop: notification, order, room."""

from __future__ import annotations

import threading
import time
from queue import Empty

import pytest

from sglang_omni.scheduling.queues import Inbox, Outbox

WAIT_S = 60


def test_an_inbox_is_a_queue() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.put(1)
    inbox.put_nowait(2)
    assert (inbox.qsize(), inbox.empty()) == (2, False)
    assert (inbox.get(), inbox.get_nowait()) == (1, 2)
    with pytest.raises(Empty):
        inbox.get(timeout=0.001)
    with pytest.raises(Empty):
        inbox.get_nowait()


def test_without_a_listener_an_outbox_never_waits() -> None:
    outbox: Outbox[int] = Outbox(limit=2)
    for number in range(5):
        outbox.put(number)
    assert [outbox.get() for _ in range(5)] == list(range(5))


def test_the_listener_is_reported_once_until_it_takes() -> None:
    reported: list[int] = []
    outbox: Outbox[int] = Outbox()
    outbox.put(0)
    outbox.listen(lambda: reported.append(outbox.qsize()))
    assert reported == [1]  # Of what was there before it listened.
    outbox.put(1)
    assert reported == [1]
    assert outbox.take(10) == [0, 1]
    outbox.put(2)
    assert reported == [1, 1]


def test_the_listeners_own_thread_never_waits() -> None:
    outbox: Outbox[int] = Outbox(limit=1)
    outbox.listen(lambda: None)
    outbox.put(1)
    outbox.put(2)
    assert outbox.take(10) == [1, 2]


@pytest.mark.parametrize("leave", [False, True])
def test_who_fills_it_too_fast_waits_for_room_or_the_listeners_leave(leave: bool) -> None:
    outbox: Outbox[int] = Outbox(limit=4)
    outbox.listen(lambda: None)

    def fill() -> None:
        for number in range(100):
            outbox.put(number)

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    begun = time.monotonic()
    while outbox.qsize() < 4 and time.monotonic() < begun + WAIT_S:
        time.sleep(0.001)
    filler.join(0.05)
    assert filler.is_alive()
    assert outbox.qsize() == 4
    taken: list[int] = []
    if leave:
        outbox.unlisten()
        filler.join(WAIT_S)
    while len(taken) < 100:
        taken += outbox.take(3)
    filler.join(WAIT_S)
    assert not filler.is_alive()
    assert taken == list(range(100))


def test_nothing_is_lost_between_threads() -> None:
    outbox: Outbox[tuple[int, int]] = Outbox(limit=8)
    something = threading.Event()
    outbox.listen(something.set)

    def fill(who: int) -> None:
        for number in range(2000):
            outbox.put((who, number))

    fillers = [threading.Thread(target=fill, args=(who,), daemon=True) for who in range(3)]
    for filler in fillers:
        filler.start()
    taken: list[tuple[int, int]] = []
    while len(taken) < 6000:
        assert something.wait(WAIT_S), "an item was put, but the listener was not notified"
        something.clear()
        while batch := outbox.take(5):
            taken += batch
    for who in range(3):
        assert [number for owner, number in taken if owner == who] == list(range(2000))


def test_the_listener_is_notified_once_of_what_is_put_together() -> None:
    seen: list[int] = []
    outbox: Outbox[int] = Outbox()
    outbox.listen(lambda: seen.append(outbox.qsize()))
    with outbox.together():
        outbox.put(1)
        outbox.put(2)
        assert seen == []
    assert seen == [2]
    assert outbox.take(10) == [1, 2]
    with outbox.together():
        pass
    assert seen == [2]


def test_a_full_outbox_is_taken_from_in_the_midst_of_what_is_put_together() -> None:
    """Otherwise the thread that fills it would wait for a listener that waits for the end."""
    outbox: Outbox[int] = Outbox(limit=2)
    taken: list[int] = []
    notified = threading.Event()
    outbox.listen(notified.set)

    def fill() -> None:
        with outbox.together():
            for number in range(5):
                outbox.put(number)

    filling = threading.Thread(target=fill)
    filling.start()
    while len(taken) < 5:
        assert notified.wait(WAIT_S)
        notified.clear()
        taken += outbox.take(10)
    filling.join(WAIT_S)
    assert taken == list(range(5))
