"""A request, and its answer: what is asked for, who answers it, and what comes back.

``request`` is what a caller wants and how stages read it, ``answer`` what comes back part by part, ``local``
the way through a coordinator of this process. The server's routes and the client both stand on this room.
"""
