"""Hosts that join a coordinator over the network, and run the processes of the stages on their node."""
