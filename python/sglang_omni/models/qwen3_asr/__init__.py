"""Qwen3-ASR: recordings of any length to text in some thirty languages, which it recognizes."""
