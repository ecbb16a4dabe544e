"""Kept for saved configs: names of ``models.omni`` that they hold."""
