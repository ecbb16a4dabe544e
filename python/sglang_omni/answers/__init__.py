"""What the text of an answer means: its content, its reasoning, and the calls of tools in it.

Models write all three as one text, each family with marks of its own. A reader splits it while it is
written, and what it has told is never taken back. ``chat.py`` is the other side: a conversation with tools
as a prompt, and what its answer must be read with.
"""
