"""Loads an OpenAI-compatible server with requests, and measures what its clients notice.

``command`` has the flags of ``sgl-omni bench serve``. Of a run, ``load`` decides when each request is sent. A
module of ``traffic`` sends it through ``target``, and notes in an ``Outcome`` when what came. ``summary``
makes figures of them for ``table``, the JSON and ``plot``. ``prompts`` and ``clips`` are what is asked.
``judge`` adds what happens beside a user's turns in realtime sessions, and figures of that.
"""
