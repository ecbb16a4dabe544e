"""The models of speech-chat, one class each."""
