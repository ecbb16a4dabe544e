"""Codecs that several model families share: between sound and frames of codes."""
