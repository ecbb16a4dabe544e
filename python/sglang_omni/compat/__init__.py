"""Adapters for older forms that the contract keeps (``docs/contract.md``); all other code knows only today's.

``executors``: stages that are executors instead of schedulers.
"""
