"""PUSH and PULL between hosts; no message is lost or doubled when a connection breaks."""
