"""Whisper: recordings of any length to text with times, in about a hundred languages."""
