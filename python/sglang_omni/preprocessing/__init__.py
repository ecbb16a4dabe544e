"""Decoding and tokenizing: from users' encoded media, messages and texts to the inputs of models."""
