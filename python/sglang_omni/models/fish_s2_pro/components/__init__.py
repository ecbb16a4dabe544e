"""What Fish Audio S2-Pro's stages are made of."""
