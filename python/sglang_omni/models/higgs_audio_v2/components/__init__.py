"""The decoder of Higgs Audio v2, its prompts, and the settings of its checkpoint."""
