"""The parts of Qwen3-TTS, and the settings of its checkpoint."""
