"""What clients send: OpenAI's fields and those that users of SGLang expect, a file for a route."""
