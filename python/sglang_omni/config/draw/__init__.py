"""A pipeline as a picture or a report."""
