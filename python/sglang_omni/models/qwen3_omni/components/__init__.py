"""What Qwen3-Omni's stages are made of."""
