"""Supervision of processes, as the parent of a pipeline and that of a fleet of servers both need it."""
