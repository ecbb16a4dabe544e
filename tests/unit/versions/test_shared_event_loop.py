"""The loop that threads act for while it waits: where callbacks run, and that none is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import pytest

from sglang_omni.versions.asyncio import SharedEventLoop

WAIT_S = 60


@pytest.fixture
def loop() -> Iterator[SharedEventLoop]:
    """Runs in a thread of its own."""
    loop = SharedEventLoop()
    running = threading.Thread(target=loop.run_forever, name="loop", daemon=True)
    running.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    running.join(WAIT_S)
    loop.close()


def until_it_waits(loop: SharedEventLoop) -> None:
    """Returns when the loop is about to wait, without a timer."""
    while loop._turn.locked() or loop._waits_until != float("inf"):
        pass


class Ran(NamedTuple):
    thread: str
    loop: object


def note(seen: SimpleQueue[Ran]) -> None:
    seen.put(Ran(threading.current_thread().name, asyncio.get_running_loop()))


def test_the_calling_thread_acts_while_the_loop_waits(loop: SharedEventLoop) -> None:
    until_it_waits(loop)
    seen: SimpleQueue[Ran] = SimpleQueue()
    loop.run_here(partial(note, seen))
    assert seen.get_nowait() == Ran(threading.current_thread().name, loop)
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_what_is_left_for_a_busy_loop_runs_there_and_nobody_waits(loop: SharedEventLoop) -> None:
    until_it_waits(loop)
    begun, gate = threading.Event(), threading.Event()
    loop.call_soon_threadsafe(lambda: (begun.set(), gate.wait(WAIT_S)))
    assert begun.wait(WAIT_S)
    seen: SimpleQueue[Ran] = SimpleQueue()
    loop.run_here(partial(note, seen))
    assert seen.empty()
    gate.set()
    assert seen.get(timeout=WAIT_S) == Ran("loop", loop)


def test_a_thread_runs_what_another_left_meanwhile(loop: SharedEventLoop) -> None:
    until_it_waits(loop)
    seen: SimpleQueue[Ran] = SimpleQueue()

    def act() -> None:
        other = threading.Thread(target=loop.run_here, args=(partial(note, seen),))
        other.start()
        other.join(WAIT_S)
        assert not other.is_alive()
        assert seen.empty()

    loop.run_here(act)
    assert seen.get_nowait().thread == threading.current_thread().name


def wait_for(done: threading.Event, loop: SharedEventLoop) -> None:
    loop.call_later(0.001, done.set)


def make_task(done: threading.Event, loop: SharedEventLoop) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        done.set()

    loop.create_task(work())


@pytest.mark.parametrize("begin", [wait_for, make_task])
@pytest.mark.parametrize("timer_s", [None, 3600.0])
def test_what_a_callback_begins_goes_on_in_the_loop(
    loop: SharedEventLoop,
    begin: Callable[[threading.Event, SharedEventLoop], None],
    timer_s: float | None,
) -> None:
    until_it_waits(loop)
    if timer_s is not None:
        loop.run_here(lambda: (loop.call_later(timer_s, lambda: None), None)[1])
    done = threading.Event()
    loop.run_here(partial(begin, done, loop))
    assert done.wait(WAIT_S)


def test_a_callback_without_work_for_the_loop_does_not_wake_it(
    loop: SharedEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_it_waits(loop)
    timer = threading.Event()
    loop.run_here(lambda: (loop.call_later(3600, timer.set), None)[1])
    while loop._turn.locked() or loop._waits_until == float("inf"):
        pass
    woken: list[object] = []
    monkeypatch.setattr(loop, "call_soon_threadsafe", woken.append)
    loop.run_here(lambda: None)
    monkeypatch.undo()
    assert woken == []


def test_a_failing_callback_is_reported_and_the_others_run(loop: SharedEventLoop) -> None:
    until_it_waits(loop)
    reported: list[object] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    failure = OSError("no")

    def fail() -> None:
        raise failure

    loop.run_here(fail)
    seen: SimpleQueue[Ran] = SimpleQueue()
    loop.run_here(partial(note, seen))
    seen.get(timeout=WAIT_S)
    assert reported == [failure]


def test_a_thread_with_a_loop_of_its_own_leaves_it_to_the_loop(loop: SharedEventLoop) -> None:
    until_it_waits(loop)
    seen: SimpleQueue[Ran] = SimpleQueue()

    async def act() -> None:
        own = asyncio.get_running_loop()
        loop.run_here(partial(note, seen))
        assert asyncio.get_running_loop() is own

    asyncio.run(act())
    assert seen.get(timeout=WAIT_S) == Ran("loop", loop)


def test_a_closed_loop_refuses() -> None:
    loop = SharedEventLoop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run_here(lambda: None)


def test_no_two_callbacks_run_beside_each_other_and_each_runs_once(loop: SharedEventLoop) -> None:
    busy = threading.Lock()
    counts = {"here": 0, "in the loop": 0}
    clashes: list[str] = []
    ended = threading.Event()

    def count(where: str, value: int = 0) -> None:
        if not busy.acquire(blocking=False):
            clashes.append(where)
            return
        counts[where] += 1
        busy.release()

    def emit() -> None:
        for _ in range(3000):
            loop.run_here(partial(count, "here"))

    def turn(left: int) -> None:
        count("in the loop")
        if left:
            loop.call_later(0.0001 if left % 2 else 0, turn, left - 1)
        else:
            ended.set()

    threads = [threading.Thread(target=emit) for _ in range(3)]
    loop.call_soon_threadsafe(turn, 999)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert ended.wait(WAIT_S)
    last = threading.Event()
    loop.run_here(last.set)
    assert last.wait(WAIT_S)
    assert clashes == []
    assert counts == {"here": 9000, "in the loop": 1000}


# --- every interleaving ------------------------------------------------------------------------
#
# A model of `run_here` and of the selector: each step reads or writes one thing that threads share. Three
# threads leave a callback each, while the loop waits or is about to.


class State(NamedTuple):
    """``steps`` of the loop and the threads; ``owner`` has the turn, or nobody (-1) has."""

    steps: tuple[str, ...]
    owner: int
    left: int
    claimed: bool
    event: bool
    woken: bool
    ran: int


LOOP, NOBODY = 0, -1


def loop_steps(state: State) -> Iterator[State]:
    step, rest = state.steps[LOOP], state.steps[1:]

    def go(to: str, **changes: object) -> State:
        return state._replace(steps=(to, *rest), **changes)  # type: ignore[arg-type]

    if step == "select":
        yield go("run" if state.left else "release")
    elif step == "release":
        yield go("look", owner=NOBODY)
    elif step == "look":
        yield go("try" if state.left else "wait")
    elif step == "try":
        yield go("run", owner=LOOP) if state.owner == NOBODY else go("wait")
    elif step == "wait":
        if state.woken or state.event:
            yield go("claim", woken=False, event=False)
    elif step == "claim":
        yield go("take", claimed=True)
    elif step == "take":
        if state.owner == NOBODY:
            yield go("unclaim", owner=LOOP)
    elif step == "unclaim":
        yield go("look again", claimed=False)
    elif step == "look again":
        yield go("run" if state.left else "select")
    elif step == "run":
        yield go("select", ran=state.ran + state.left, left=0)


def thread_steps(state: State, me: int) -> Iterator[State]:
    def go(to: str, **changes: object) -> State:
        steps = (*state.steps[:me], to, *state.steps[me + 1 :])
        return state._replace(steps=steps, **changes)  # type: ignore[arg-type]

    step = state.steps[me]
    if step == "leave":
        yield go("look", left=state.left + 1)
    elif step == "look":
        yield go("ask" if state.left else "end")
    elif step == "ask":
        yield go("end" if state.claimed else "try")
    elif step == "try":
        yield go("run", owner=me) if state.owner == NOBODY else go("end")
    elif step == "run":
        yield go("release", ran=state.ran + state.left, left=0)
    elif step == "release":
        yield go("look", owner=NOBODY)


def next_states(state: State) -> Iterator[State]:
    yield from loop_steps(state)
    for me in range(1, len(state.steps)):
        yield from thread_steps(state, me)


@pytest.mark.parametrize("begins", ["select", "wait"])
@pytest.mark.parametrize("event", [False, True], ids=["nothing comes", "an event comes"])
def test_in_every_order_of_steps_all_that_was_left_has_run_when_the_loop_sleeps(
    begins: str, event: bool
) -> None:
    owner = LOOP if begins == "select" else NOBODY
    first = State((begins, "leave", "leave", "leave"), owner, 0, False, event, False, 0)
    known, ahead, ends = {first}, [first], 0
    while ahead:
        state = ahead.pop()
        following = set(next_states(state))
        acting = [i for i, step in enumerate(state.steps) if step in ("run", "release") and i != LOOP]
        if state.steps[LOOP] in ("select", "release", "run", "unclaim", "look again"):
            acting.append(LOOP)
        assert len(acting) <= 1, f"two have the turn: {state}"
        if not following:
            ends += 1
            assert state.steps == ("wait", "end", "end", "end"), f"someone waits for ever: {state}"
            assert (state.left, state.ran) == (0, 3), f"something was left behind: {state}"
        ahead += following - known
        known |= following
    assert ends
