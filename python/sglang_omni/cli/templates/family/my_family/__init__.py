"""A family of models that speak: text to codes, step by step, and codes to sound."""
