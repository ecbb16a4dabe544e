"""Turning what users send (encoded media, messages, text) into what models read."""
