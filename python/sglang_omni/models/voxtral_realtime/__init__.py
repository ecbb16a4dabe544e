"""Voxtral Realtime: sound to text in some thirteen languages, a token each 80 ms while the sound goes on."""
