"""Processes seen from outside, which may end while one looks."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil


def is_alive(process: psutil.Process) -> bool:
    """True if it does anything; one that is dead and not collected yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_running(pid: int) -> bool:
    """``is_alive`` of a process of which only its id is known."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def is_mostly_asleep(pid: int) -> bool:
    """True if its threads were all asleep in most of fifty looks: never, where one tries again and again."""

    def is_asleep() -> bool:
        threads = Path(f"/proc/{pid}/task").glob("*/stat")
        # The state stands behind the name, which may hold anything.
        return all(thread.read_text().rpartition(")")[2].split()[0] != "R" for thread in threads)

    looks = []
    for _ in range(50):
        time.sleep(0.02)
        looks.append(is_asleep())
    return sum(looks) > 25


def command_line(process: psutil.Process) -> str:
    """Its program and arguments; empty where it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def hear_hangups() -> None:
    """For ``Popen(preexec_fn=...)``: SIGHUP counts there, also where the tests run under ``nohup``."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
