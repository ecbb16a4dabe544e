"""The responses that are kept, in memory, for those that follow them."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any
from uuid import uuid4

from sglang_omni.proto import RequestError

# OpenAI's form of an item, with an id.
Item = dict[str, Any]
# Of all owners together, and the share that one of them may have.
MAX_RESPONSES = 4096
MAX_BYTES = 256 * 2**20
_SHARE = 4


@dataclass(eq=False)
class KeptResponse:
    """A response, with the conversation that led to it.

    Attributes:
        fields: The response as it was answered.
        items: Of its own input.
        previous: The response that it follows.
        size: Bytes of its own items and fields.
        followers: How many kept responses follow it.
        is_deleted: It is kept only for its followers.
    """

    owner: str | None
    fields: dict[str, Any]
    items: list[Item]
    previous: KeptResponse | None = None
    size: int = 0
    followers: int = 0
    is_deleted: bool = False

    def chain(self) -> list[KeptResponse]:
        """This response and those before it, the last first."""
        chain: list[KeptResponse] = []
        each: KeptResponse | None = self
        while each is not None:
            chain.append(each)
            each = each.previous
        return chain

    def context(self) -> Iterator[Item]:
        """The items of the conversation up to this response's output."""
        for each in reversed(self.chain()):
            yield from each.items
            yield from each.fields["output"]

    def input(self) -> list[Item]:
        """The items that the response was made from."""
        earlier = [] if self.previous is None else list(self.previous.context())
        return earlier + self.items


@dataclass
class ResponseStore:
    """Kept responses, by owner and id; an owner finds its own alone.

    If there are too many, or they are too large, those that were used longest ago are forgotten: first those
    of an owner that has more than its share. A response is never forgotten before those that follow it.

    Attributes:
        server: The name of this process, which begins the ids of its responses. Routers send a request for
            one to the server that lists this name.
        max_responses: How many are kept.
        max_bytes: How large they may be together.
    """

    server: str = field(default_factory=lambda: token_hex(6))
    max_responses: int = MAX_RESPONSES
    max_bytes: int = MAX_BYTES
    _kept: OrderedDict[str, KeptResponse] = field(default_factory=OrderedDict)
    _counts: Counter[str | None] = field(default_factory=Counter)
    _sizes: Counter[str | None] = field(default_factory=Counter)

    def new_id(self) -> str:
        """The id of a response that may be kept here."""
        return f"resp_{self.server}_{uuid4().hex}"

    def get(self, response_id: str, owner: str | None) -> KeptResponse | None:
        kept = self._kept.get(response_id)
        if kept is None or kept.owner != owner or kept.is_deleted:
            return None
        self._use(kept)
        return kept

    def need(self, response_id: str, owner: str | None, param: str | None = None) -> KeptResponse:
        """
        Args:
            param: The field that names the response.

        Raises:
            RequestError: 404: it is not kept here.
        """
        kept = self.get(response_id, owner)
        if kept is None:
            raise RequestError(
                f"no response {response_id[:128]!r} is kept here. Responses are kept by the server that gave "
                "them, in memory, until it ends or has newer ones: send the conversation as input",
                param=param,
                code="response_not_found" if param is None else "previous_response_not_found",
                status=404,
            )
        return kept

    def fits(self, response: KeptResponse) -> bool:
        """True if the response can be kept with those before it, which must still be; sets its size."""
        response.size = _bytes(response.items) + _bytes(response.fields)
        chain = response.chain()
        return (
            all(each.fields["id"] in self._kept for each in chain[1:])
            and len(chain) <= self.max_responses // _SHARE
            and sum(each.size for each in chain) <= self.max_bytes // _SHARE
        )

    def keep(self, response: KeptResponse) -> None:
        """Keep a response that ``fits``."""
        self._kept[response.fields["id"]] = response
        self._counts[response.owner] += 1
        self._sizes[response.owner] += response.size
        if response.previous is not None:
            response.previous.followers += 1
        self._use(response)
        owner = response.owner
        while (
            self._counts[owner] > self.max_responses // _SHARE
            or self._sizes[owner] > self.max_bytes // _SHARE
        ):
            self._forget(next(each for each in self._kept.values() if each.owner == owner))
        while len(self._kept) > self.max_responses or self._sizes.total() > self.max_bytes:
            self._forget(next(iter(self._kept.values())))

    def delete(self, response: KeptResponse) -> None:
        """Have no caller find a response; those that follow it still know what it said."""
        response.is_deleted = True
        if not response.followers:
            self._forget(response)

    def _use(self, response: KeptResponse) -> None:
        for each in response.chain():
            self._kept.move_to_end(each.fields["id"])

    def _forget(self, response: KeptResponse) -> None:
        """Drop a response, and those before it that were deleted and only it still needed."""
        last: KeptResponse | None = response
        while last is not None:
            del self._kept[last.fields["id"]]
            for counter, amount in ((self._counts, 1), (self._sizes, last.size)):
                counter[last.owner] -= amount
                if not counter[last.owner]:
                    del counter[last.owner]
            previous = last.previous
            if previous is not None:
                previous.followers -= 1
            is_over = previous is not None and previous.is_deleted and not previous.followers
            last = previous if is_over else None


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
