"""API workers: processes that serve HTTP before one pipeline, and the main process's end of each."""
