"""PUSH and PULL between hosts, which outlive a broken connection."""
