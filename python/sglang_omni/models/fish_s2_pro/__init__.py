"""Fish Audio S2-Pro: text in, codes of speech out; a slow decoder over time, a fast one over each frame."""
