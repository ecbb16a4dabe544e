"""Parts of models that see, hear and read, shared by their families: media in, positions, a thinker."""
