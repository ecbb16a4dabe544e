"""The parent's room: plans the processes of a run and keeps them going.

``runner`` starts and stops a run, ``supervisor`` restarts what dies, ``watchdog`` ends what hangs, and
``autoscaler`` follows the load. Launchers start processes: ``local``, ``hosts``, ``ray``.
"""
