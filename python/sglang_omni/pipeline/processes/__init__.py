"""The parent's room: plans a pipeline's processes, starts, watches, restarts and scales them."""
