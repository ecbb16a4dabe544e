"""Random Qwen2.5-Omni checkpoints of a few megabytes, in the layout of the published ones."""
