"""Request models of the API: OpenAI's fields and those that users of SGLang expect, a file a route."""
