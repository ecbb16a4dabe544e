"""Qwen3-ASR's parts: its checkpoint, its audio encoder, and the form of its answers."""
