"""PUSH and PULL on Unix sockets, driven by the event loop."""
