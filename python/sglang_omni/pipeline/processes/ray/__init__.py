"""Processes as Ray actors on a Ray cluster."""
