"""How much of something a request may say, at the API and in the engines alike."""

# Each step of a batch looks for these in each of its requests.
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKENS = 256
