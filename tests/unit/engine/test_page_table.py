"""Steps find the pages of their sequences in a table on the device, and write there only what is new."""

from __future__ import annotations

import random

import torch

from sglang_omni.model_runner.page_table import PageTable

NO_PAGE = 999


def step(table: PageTable, sequences: list[list[int]]) -> int:
    """Does what a step does; returns how many entries it wrote."""
    update = table.update(sequences)
    places, pages = (torch.tensor(numbers, dtype=torch.int32) for numbers in (update.places, update.pages))
    table.write(update, places, pages)
    assert len(set(update.rows)) == len(sequences)
    assert table.no_sequence not in update.rows
    for row, pages in zip(update.rows, sequences, strict=True):
        kept = pages[: table.rows.shape[1]]
        assert table.rows[row, : len(kept)].tolist() == kept
    assert set(table.rows[table.no_sequence].tolist()) == {NO_PAGE}
    return len(update.places)


def test_only_new_pages_are_written() -> None:
    table = PageTable(2, 4, NO_PAGE, torch.device("cpu"))
    one, other = [5, 6], [7]
    assert step(table, [one, other]) == 3
    assert step(table, [other, one]) == 0
    one.append(8)
    assert step(table, [one, other]) == 1
    # It was preempted, and is computed anew in other pages.
    one = [1, 2, 3]
    assert step(table, [one]) == 3
    # More than the table holds.
    one += [4, 9]
    assert step(table, [one]) == 1
    assert step(table, [one]) == 0


def test_the_rows_of_ended_sequences_are_taken_first() -> None:
    table = PageTable(3, 4, NO_PAGE, torch.device("cpu"))
    running, ended = [1], [2]
    step(table, [running, ended])
    for number in range(5):
        assert step(table, [running, [10 + number], [20 + number]]) == 2


def test_what_a_failed_step_did_not_write_is_written_by_the_next() -> None:
    table = PageTable(2, 4, NO_PAGE, torch.device("cpu"))
    one, other = [5], [7]
    step(table, [one])
    one.append(6)
    # Memory was too short to take it to the device.
    table.update([one, other])
    assert step(table, [one]) == 1
    assert step(table, [other, one]) == 1


def test_random_traffic() -> None:
    draw = random.Random(3)
    table = PageTable(4, 6, NO_PAGE, torch.device("cpu"))
    sequences: list[list[int]] = []
    for _ in range(400):
        if len(sequences) < 8:
            sequences.append([draw.randrange(99)])
        if draw.random() < 0.2:
            sequences.pop(draw.randrange(len(sequences)))
        chosen = draw.sample(sequences, min(len(sequences), draw.randint(1, 4)))
        for pages in chosen:
            pages += [draw.randrange(99) for _ in range(draw.randint(0, 2))]
        step(table, chosen)
