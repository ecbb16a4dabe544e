"""The parts of Kokoro, and the settings of its checkpoint."""
