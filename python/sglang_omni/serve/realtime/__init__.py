"""Realtime sessions: a conversation by events, over whatever carries them."""
