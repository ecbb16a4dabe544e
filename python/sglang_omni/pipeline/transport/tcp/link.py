"""Messages over ``tcp://`` that outlive the connection they were sent on: what the two ends say.

TCP delivers in order or breaks, and when it breaks neither end knows what arrived. So the sender keeps each
message until the receiver has confirmed it, and after a break goes on, on a new connection, with the first
that did not arrive. Nothing is lost, nothing comes twice, and the order stays, unless one of the two
processes ends. One connection, DEALER at the sender and ROUTER at the receiver, goes like this:

    sender    HELLO    its name, the number of the first message it has, and of the first it never sent
    receiver  EXPECTS  the name of its process, and the number of the message it wants next
    sender    message, message, ...   in order, from that number on
    receiver  EXPECTS  again after a while, which confirms all before that number
    receiver  EXPECTS  nothing more, before it closes: no link was cut

What can be lost, and who is told:

- The receiver's process ends. What was sent and is not confirmed may have arrived at the dead one, is not
  sent to its successor, and is reported as lost. Messages that were never sent go to the successor, on
  whatever port it is.
- The receiver cannot be reached for ``UNREACHABLE_S``: what waits for it is reported as lost.
- The sender's process ends: so do the requests it holds, by the coordinator's books (``progress``).

Whoever sends a request's message fails that request when it hears of a loss. What goes to the coordinator
is kept for as long as it takes: without the coordinator there is no run, and a stage on another host that
does not hear of it ends.
"""

from __future__ import annotations

import struct

# The sender's name, the number of its first message, and of the first that it never sent.
HELLO = struct.Struct("!6s16sQQ")
HELLO_MAGIC = b"omni/1"
# The name of the receiver's process, and the number of the next message.
EXPECTS = struct.Struct("!16sQ")
# In place of that number.
NOTHING_MORE = (1 << 64) - 1
