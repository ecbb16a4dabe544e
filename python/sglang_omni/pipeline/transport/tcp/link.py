"""The protocol of ``tcp://`` links: messages arrive once and in order, also if connections break.

TCP delivers in order or breaks, and when it breaks neither end knows what arrived. So the sender keeps each
message until the receiver has confirmed it. After a break it goes on, over a new connection, with the first
message that did not arrive. Nothing is lost or doubled unless one of the two processes ends. A connection is
DEALER at the sender and ROUTER at the receiver:

    sender    HELLO    its name, the number of the first message it has, and of the first it never sent
    receiver  EXPECTS  the name of its process, and the number of the message it wants next
    sender    message, message, ...   in order, from that number on
    receiver  EXPECTS  again after a while, which confirms all messages before that number
    receiver  EXPECTS  nothing more, before it closes: the link is not broken

Messages can be lost in three cases:

- The receiver's process ends. Messages that were sent and not confirmed may have arrived there, so they are
  reported as lost. Those never sent go to the process's successor, whatever its port is.
- The receiver cannot be reached for ``UNREACHABLE_S``. The messages that wait for it are reported as lost.
- The sender's process ends. The coordinator fails the requests it held (``coordinator/requests.py``).

A reported loss fails the request that the message was for. Messages to the coordinator are never given up:
without the coordinator there is no run, and a stage on another host that loses it ends.
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
