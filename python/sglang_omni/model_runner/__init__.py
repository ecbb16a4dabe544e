"""Model execution: weights, paged attention, sampling."""
