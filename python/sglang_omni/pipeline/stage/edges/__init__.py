"""The edges of a stage: what carries a payload, a chunk or an end to the next stage."""
