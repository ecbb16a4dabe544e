"""Processes on other hosts: the hosts join, start their share of a plan, and may be lost."""
