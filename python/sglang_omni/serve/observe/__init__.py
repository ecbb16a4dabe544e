"""What is recorded of requests, and shown: history, timelines, spans, playback."""
