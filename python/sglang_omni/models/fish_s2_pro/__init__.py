"""Fish Audio S2-Pro: text to speech, by a slow decoder over time, a fast one over each frame, and a codec."""
