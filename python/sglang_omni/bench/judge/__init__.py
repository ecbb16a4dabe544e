"""Judges voice servers by what a person beside the loudspeaker and the microphone would notice.

``scenarios`` lists what happens during a session, ``cast`` and ``sounds`` make what is said. A ``talk`` says
it in a ``session``, through its ``microphone``. A ``recording`` keeps what came; its ``listener`` plays it.
``measures`` makes figures of it, without a clock or a socket, and ``table`` shows them.
"""
