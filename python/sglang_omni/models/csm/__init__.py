"""CSM, Sesame's conversational speech model: text, and perhaps an earlier turn in a voice, to speech."""
