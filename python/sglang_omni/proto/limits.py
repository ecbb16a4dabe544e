"""Limits of a request's fields, for the API and the engines alike."""

# Each step of a batch looks for these in each request.
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKENS = 256

# Tokens that a request may bias, and characters of a grammar or schema that an answer must match.
MAX_LOGIT_BIAS = 1024
MAX_BIAS = 100
MAX_GRAMMAR_LENGTH = 65536
# Alternatives told beside each token, and of a prompt, tokens and alternatives together.
MAX_LOGPROBS = 20
MAX_PROMPT_LOGPROBS = 2**18
