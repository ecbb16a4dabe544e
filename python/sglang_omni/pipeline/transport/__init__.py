"""The control plane's sockets: PUSH to one peer, PULL from many; what the messages mean is not known here."""
