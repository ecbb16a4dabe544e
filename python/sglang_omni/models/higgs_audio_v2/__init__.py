"""Higgs Audio v2: text, and perhaps the recording of a voice, in; speech out."""
