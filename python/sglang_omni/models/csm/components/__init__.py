"""The decoders of CSM, and the settings of its checkpoint."""
