"""The default pipeline: a spoken or written conversation, answered in text and speech.

A cascade of three small models whose weights come inside Python packages: Whisper tiny.en hears,
SmolLM2-135M-Instruct (or any Llama or Qwen checkpoint) answers, Hibari speaks.
"""
