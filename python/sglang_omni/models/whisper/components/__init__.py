"""Whisper's parts: its checkpoint, its features, its two networks and its rules of decoding."""
