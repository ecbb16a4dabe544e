"""Voxtral Realtime's parts: its checkpoint, its tokenizer's file, and its audio encoder."""
