"""Who owns which page of the KV cache, and which pages can be shared."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from sglang_omni.engines.request import EngineRequest


class _Node(NamedTuple):
    id: int
    page: int


class ResourceManager:
    """Pages of the KV pool, counted by reference, found again by the tokens they hold.

    A full page is published under the exact chain of tokens that leads to it. It can be shared while in
    use, and is kept after its last user until the pool needs the room, least recently used first.
    """

    def __init__(self, num_pages: int, page_size: int, *, prefix_cache: bool = True) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._prefix_cache = prefix_cache
        self._users = [0] * num_pages
        # Free pages in the order they are given out: those that hold nothing first.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))
        # (parent node, tokens of the page) -> node. Node ids are never reused, so that a page which was
        # given away leaves its descendants unreachable instead of wrong.
        self._nodes: dict[tuple[int, tuple[int, ...]], _Node] = {}
        self._key_of_page: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._last_node = 0
        self._num_evictable = 0

    @property
    def num_used_pages(self) -> int:
        return self.num_pages - len(self._free)

    @property
    def num_evictable_pages(self) -> int:
        """Pages that no request uses and that still hold a prefix."""
        return self._num_evictable

    def fits(self, request: EngineRequest, *, spare: int = 0) -> bool:
        """Whether all tokens of a request without pages could have room, leaving ``spare`` pages free."""
        shared = self._find_prefix(request)
        missing = -(-request.num_tokens // self.page_size) - len(shared)
        return missing + spare <= len(self._free) - sum(node.page in self._free for node in shared)

    def attach_prefix(self, request: EngineRequest) -> None:
        """Gives a request without pages those that already hold a prefix of its tokens."""
        shared = self._find_prefix(request)
        for node in shared:
            self._take(node.page)
        request.pages = [node.page for node in shared]
        request.prefix_node = shared[-1].id if shared else 0
        request.num_published = len(shared)
        request.num_computed = len(shared) * self.page_size

    def _find_prefix(self, request: EngineRequest) -> list[_Node]:
        """At least one token is left to compute: its logits are what the request waits for."""
        found: list[_Node] = []
        parent, size = 0, self.page_size
        if request.cacheable:
            for start in range(0, request.num_tokens - size, size):
                node = self._nodes.get((parent, request.key_tokens(start, start + size)))
                if node is None:
                    break
                found.append(node)
                parent = node.id
        return found

    def grow(self, request: EngineRequest, num_tokens: int) -> bool:
        """Makes room for the request's first ``num_tokens`` tokens.

        False, and nothing changed, where the pool has not that many.
        """
        missing = -(-num_tokens // self.page_size) - len(request.pages)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            # The neighbour of the last page, if free: consecutive pages are read without gathering them.
            page = request.pages[-1] + 1 if request.pages else -1
            if page not in self._free or page in self._key_of_page:
                page = next(iter(self._free))
            self._take(page)
            self._forget(page)
            request.pages.append(page)
        return True

    def publish(self, request: EngineRequest) -> None:
        """Lets others find the request's pages that have become full."""
        if not (self._prefix_cache and request.cacheable):
            return
        size = self.page_size
        for index in range(request.num_published, request.num_computed // size):
            key = (request.prefix_node, request.key_tokens(index * size, (index + 1) * size))
            node = self._nodes.get(key)
            if node is None:
                self._last_node += 1
                node = _Node(self._last_node, request.pages[index])
                self._nodes[key] = node
                self._key_of_page[node.page] = key
            request.prefix_node = node.id
            request.num_published = index + 1

    def release(self, request: EngineRequest) -> None:
        """Takes back every page of the request. Its computed tokens count as lost."""
        # Last page first: a chain loses its end before its beginning.
        for page in reversed(request.pages):
            self._users[page] -= 1
            if self._users[page] == 0:
                self._free[page] = None
                if page in self._key_of_page:
                    self._num_evictable += 1
                else:
                    self._free.move_to_end(page, last=False)
        request.pages = []
        request.num_computed = request.num_published = request.prefix_node = 0

    def clear_prefix_cache(self) -> None:
        """Forgets what free pages hold; pages in use stay published."""
        for page in self._free:
            self._forget(page)
        self._num_evictable = 0

    def _take(self, page: int) -> None:
        if self._users[page] == 0:
            del self._free[page]
            self._num_evictable -= page in self._key_of_page
        self._users[page] += 1

    def _forget(self, page: int) -> None:
        key = self._key_of_page.pop(page, None)
        if key is not None:
            del self._nodes[key]
