"""PUSH and PULL between processes of one host: ZMTP over Unix sockets that the event loop drives itself.

libzmq would pass every message from its caller to a thread of its own, and back on the other side, which
takes longer than the kernel needs to carry it. Both ends speak libzmq's protocol, so either may be libzmq's.
"""
