"""The default pipeline: a spoken or written conversation, answered in text and speech.

Three small models in a row, whose weights come inside Python packages: Whisper tiny.en transcribes,
SmolLM2-135M-Instruct (or any text checkpoint) answers, Hibari speaks.
"""
