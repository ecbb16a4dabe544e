"""The HTTP API: routes, request models, limits and errors."""
