"""The models of the stages of Qwen3-Omni, and the settings of their checkpoint."""
