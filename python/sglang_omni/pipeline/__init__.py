"""Pipelines of stages, in rooms named after the process that their code runs in.

``coordinator`` runs in the server, ``processes`` in the parent of the stages' processes, which is the server
or a host's agent, and ``stage`` in those processes; ``transport`` runs at both ends.
"""
