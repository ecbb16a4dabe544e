"""Kokoro: text in, speech out, in named voices and blends of them."""
