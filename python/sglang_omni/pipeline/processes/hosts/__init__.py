"""Processes on other hosts, which join, start their share of a plan, and may be lost."""
