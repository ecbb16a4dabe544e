"""Where a pipeline's processes are started: on this host, on hosts that have joined, or as Ray's actors."""
