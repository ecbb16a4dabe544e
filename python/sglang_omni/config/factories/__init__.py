"""The arguments that a config gives to the factories of its stages."""
