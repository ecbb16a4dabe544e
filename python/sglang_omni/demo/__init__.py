"""The demos behind ``make demo``."""
