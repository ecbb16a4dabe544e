"""Adapters for older forms that the contract keeps (``docs/contract.md``); all other code knows only today's.

``executors``: stages that are executors instead of schedulers.
``control_plane``: control planes that lack methods, completed where a stage is given one.
``plain_relay``: relays that declare no abilities, completed where a stage or ``relay_io`` is given one.
"""
