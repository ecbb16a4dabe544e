"""A spoken conversation from parts: what hears, answers and speaks, each bundled, local or elsewhere."""
