"""Processes seen from outside, which may end while one looks."""

from __future__ import annotations

import signal

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Whether it does anything; one that is dead and not collected yet does not."""
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


def command_line(process: psutil.Process) -> str:
    """Its program and arguments; empty where it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def hear_hangups() -> None:
    """For ``Popen(preexec_fn=...)``: SIGHUP counts there, also where the tests run under ``nohup``."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
