"""Default limits on the size of a request."""

# Bytes of a body, and bytes of a JSON body apart from its media.
DEFAULT_MAX_BODY_SIZE = 64 * 2**20
DEFAULT_MAX_JSON_SIZE = 8 * 2**20
