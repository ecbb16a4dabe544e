"""The sockets between a pipeline's processes, and the messages on them; runs at both ends, knows no stage."""
