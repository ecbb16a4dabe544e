"""Model families: one folder each, with its pipeline configs, stage factories and their parts."""
