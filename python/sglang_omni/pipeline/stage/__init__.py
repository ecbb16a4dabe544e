"""A stage: the I/O shell around a scheduler."""
