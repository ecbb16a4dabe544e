"""What a client may ask for, a file for a route or what belongs to it."""
