"""The decoders of Fish Audio S2-Pro, and the settings of their checkpoint."""
