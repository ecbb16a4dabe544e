"""Stages, the coordinator in front of them, and what connects the two."""
