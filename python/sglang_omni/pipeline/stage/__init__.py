"""A stage's room: the I/O shell around a scheduler, in a process of its own or with others."""
