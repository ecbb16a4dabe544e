"""Starting servers: flags, one replica, a fleet of replicas with its router, the web server under it."""
