"""Speech as frames of codes: a decoder over time chooses each frame's first code, another one the rest."""
