"""One folder a model family: its pipeline config, its stage factories and their parts."""
