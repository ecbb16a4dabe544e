"""The client's transport over HTTP: OpenAI's API, with the additions of this package's servers.

``transport.py`` is the map: what is asked of which route. ``connection.py`` sends it, again if it may; the
rest is what the bodies of requests and answers mean.
"""

from sglang_omni.client.http.transport import HttpTransport

__all__ = ["HttpTransport"]
