"""Flow control of the control plane: how much may be under way to one peer, and how long each thing may take.

A receiver that is behind stops reading. Its messages then pile up in its own process (``READ_AHEAD``), in
the kernel or libzmq, and at last in the sender (``QUEUED_MESSAGES``, ``QUEUED_BYTES``), whose ``send`` waits.
"""

# Messages taken from one connection before the event loop does other work.
BATCH = 256
# Messages decoded and not yet asked for with ``recv``. A handler given to ``deliver_to`` has its own limit.
READ_AHEAD = 2048
# Messages and bytes under way to one peer at which its senders wait. One message may be larger.
QUEUED_MESSAGES = 1000
QUEUED_BYTES = 16 << 20

# A ``tcp://`` receiver confirms this many messages at once: few enough that the sender need not wait.
CONFIRM_EVERY = QUEUED_MESSAGES // 4
# Seconds after which it confirms fewer.
CONFIRM_S = 0.02

# Aborts queued for one subscriber, which are small and must never block; more are lost.
QUEUED_ABORTS = 100_000
# Aborts repeated to a process that subscribes late, for example after a restart.
REMEMBERED_ABORTS = 4096

# Seconds between two attempts to reach a peer, which may be on its way up: the first pause, doubled up to
# the longest.
FIRST_RETRY_S = 0.02
LONGEST_RETRY_S = 0.5
# Seconds after which messages for a ``tcp://`` peer that cannot be reached are lost: more than a restarted
# process or a repaired link needs, less than a caller waits.
UNREACHABLE_S = 30.0
# Seconds the last messages have to leave after ``close``, so that a stop takes seconds at most.
LINGER_S = 0.5
