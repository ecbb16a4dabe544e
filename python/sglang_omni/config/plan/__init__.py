"""What follows from a config: instances, edges, places, processes and memory."""
