"""Limits of a request's fields, for the API and the engines alike."""

# Each step of a batch looks for these in each request.
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKENS = 256
