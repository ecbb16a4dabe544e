"""Speech as frames of codes: one decoder over time chooses each frame's first code, another the rest of it."""
