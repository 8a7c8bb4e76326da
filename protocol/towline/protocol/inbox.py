"""For whom a question or a blocker waits, as entries of the inbox index.

Promises that everyone who may answer finds the item under one of `looks_of`, except an owner by grant, who looks under
whoever started the runs they own: `role:owner` stands in the index as the subject that started the run, so that a
reader need not look at every run there is. Who really may answer is decided when the item is read. Pure; the members
are written by `lib/inbox.lua` and read by `store.listing`.
"""

from collections.abc import Sequence
from typing import Final

from towline.protocol.tokens import Credential

OPERATORS: Final = "role:operator"
COLLABORATORS: Final = "role:collaborator"
_BLOCKER: Final = "blocker:"


def whom(entries: Sequence[str], owner: str) -> list[str]:
    """The index entries of a request that these `deciders` or `answerers` may answer."""
    return list(dict.fromkeys(f"user:{owner}" if entry == "role:owner" else entry for entry in entries))


def blocked(blocker: str, owner: str) -> dict[str, list[str]]:
    """What a run that is blocked puts into inboxes: its owner's, and the operators', who can do something."""
    return {f"{_BLOCKER}{blocker}": [f"user:{owner}", OPERATORS]}


def blocker_in(item: str) -> str | None:
    """The blocker that an item of the index names; None for a request."""
    return item.removeprefix(_BLOCKER) if item.startswith(_BLOCKER) else None


def looks_of(credential: Credential) -> list[str]:
    """Where the holder of a credential looks for what waits."""
    looks = [f"user:{credential.subject}", *(f"group:{group}" for group in credential.groups), COLLABORATORS]
    return [*looks, OPERATORS] if "operator" in credential.roles else looks
