"""Random Qwen3-Omni checkpoints of a few megabytes, in the layout of the published ones."""
