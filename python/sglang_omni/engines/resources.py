"""The pages of the KV cache: their owners, and the prefixes by which requests share them."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from sglang_omni.engines.cache_events import CacheEvents
from sglang_omni.engines.request import EngineRequest


class _Node(NamedTuple):
    id: int
    page: int


class ResourceManager:
    """Reference-counted pages of the KV pool, found by the tokens they hold.

    A full page is published under the exact chain of tokens that leads to it. Requests can share it while it
    is in use and afterwards, until the pool needs it; the least recently used page goes first.

    Args:
        events: Gets what can be found, and what cannot any more.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        prefix_cache: bool = True,
        events: CacheEvents | None = None,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._prefix_cache = prefix_cache
        self.events = events
        self._users = [0] * num_pages
        # Free pages in the order of use: those that hold no prefix first.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))
        # (parent node, tokens of the page) -> node. Node ids are never reused, so the descendants of a page
        # that was reused are unreachable instead of wrong.
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
        """True if a request without pages would fit as a whole and leave ``spare`` pages free."""
        shared = self._find_prefix(request)
        missing = -(-request.num_tokens // self.page_size) - len(shared)
        return missing + spare <= len(self._free) - sum(node.page in self._free for node in shared)

    def attach_prefix(self, request: EngineRequest) -> None:
        """Gives a request without pages the published pages that hold a prefix of its tokens."""
        shared = self._find_prefix(request)
        for node in shared:
            self._take(node.page)
        request.pages = [node.page for node in shared]
        request.prefix_node = shared[-1].id if shared else 0
        request.num_published = len(shared)
        request.num_computed = len(shared) * self.page_size

    def _find_prefix(self, request: EngineRequest) -> list[_Node]:
        """Leaves at least one token to compute: the request needs its logits."""
        found: list[_Node] = []
        parent, size = 0, self.page_size
        if request.reads_prefixes:
            for start in range(0, request.num_tokens - size, size):
                node = self._nodes.get((parent, request.key_tokens(start, start + size)))
                if node is None:
                    break
                found.append(node)
                parent = node.id
        return found

    def grow(self, request: EngineRequest, num_tokens: int) -> bool:
        """Takes pages for the request's first ``num_tokens`` tokens.

        Returns:
            False if the pool has too few; nothing has changed then.
        """
        missing = -(-num_tokens // self.page_size) - len(request.pages)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            # The page after the last one, if free: consecutive pages are read without a gather.
            page = request.pages[-1] + 1 if request.pages else -1
            if page not in self._free or page in self._key_of_page:
                page = next(iter(self._free))
            self._take(page)
            self._forget(page)
            request.pages.append(page)
        return True

    def publish(self, request: EngineRequest) -> None:
        """Lets other requests find the pages of this one that have become full."""
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
                if self.events is not None:
                    token_ids = request.tokens(index * size, (index + 1) * size)
                    self.events.stored(request.prefix_node, node.id, token_ids, key[1])
            request.prefix_node = node.id
            request.num_published = index + 1

    def release(self, request: EngineRequest) -> None:
        """Takes back every page of the request, which has no computed tokens afterwards."""
        # The last page first, so that a chain loses its end before its beginning.
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
        """Forgets the prefixes in free pages. Pages in use stay published."""
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
            node = self._nodes.pop(key)
            if self.events is not None:
                self.events.removed(node.id)
