"""Sockets and the messages on them: both ends of every connection of a pipeline. Knows no stage."""
