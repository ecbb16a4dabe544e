"""Fish Audio S2-Pro: text to codes of speech, by a slow decoder over time and a fast one over each frame."""
