"""Qwen3-TTS: text in, speech out, in a named voice, a described one, or that of a recording."""
