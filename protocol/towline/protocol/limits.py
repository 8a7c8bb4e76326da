"""Every bound of the contract, in one place. Sizes are in bytes of the encoded form."""

from typing import Final

import msgspec

KIB: Final = 1024
MIB: Final = 1024 * KIB

MAX_SEQ: Final = 2**53 - 1
"""Largest seq: what a JavaScript number holds exactly."""

EVENT_BYTES: Final = 32 * KIB
RUN_BYTES: Final = 192 * KIB
BODY_BYTES: Final = 1 * MIB
CLIENT_FRAME_BYTES: Final = 64 * KIB
SERVER_FRAME_BYTES: Final = 256 * KIB
EVENTS_FRAME_BYTES: Final = 64 * KIB
"""A frame of events is closed once it is this long, so that no frame nears the server's bound."""

PRIVATE_BYTES: Final = 64 * KIB
"""Largest private part of one entry kept in the store; what is larger goes to payload storage."""
PAYLOAD_BYTES: Final = 4 * MIB
"""Largest argument or result of a step; beyond it the step fails at once, naming itself."""
ARTIFACT_BYTES: Final = 100 * MIB
UPLOAD_BYTES: Final = 100 * MIB
UPLOAD_MS: Final = 24 * 3_600_000
"""How long an upload waits for a run that takes it."""
THREAD_CHARS: Final = 128
THREAD_RUNS: Final = 1_000
"""How many unfinished runs a thread holds."""
RETENTION_MAX_MS: Final = 10 * 365 * 24 * 3_600_000
"""The longest time for which an ended run may be kept in the store before it is archived."""
UPLOADS_PER_VALUE: Final = 20
REQUEST_INLINE_BYTES: Final = 8 * KIB

PAGE_EVENTS: Final = 1000
PAGE_BYTES: Final = 1 * MIB
STORE_PAGE_EVENTS: Final = 500
"""How many entries one read of the store takes."""
SUBSCRIPTION_LIMIT: Final = 10_000
LIST_DEFAULT: Final = 50
LIST_MAX: Final = 200
WAIT_MAX_MS: Final = 30_000

SCRIPT_ENTRIES: Final = 100
SCRIPT_BYTES: Final = 256 * KIB
CHANGED_ATTEMPTS: Final = 5
"""How often a caller reads and prepares again after CHANGED before it answers `overloaded`."""

TITLE_CHARS: Final = 200
HEADLINE_CHARS: Final = 80
SUMMARY_BYTES: Final = 4 * KIB
PLAN_ITEMS: Final = 100
LABELS: Final = 32
LABEL_CHARS: Final = 128
FRAME_ID_CHARS: Final = 64

UNAPPLIED_COMMANDS: Final = 20
GRACE_DEFAULT_MS: Final = 30_000
GRACE_MAX_MS: Final = 600_000

LEASE_MS: Final = 6_000
RENEW_MS: Final = 2_000
SWEEP_MS: Final = 1_000
NO_WORKER_MS: Final = 30_000
POISON_CRASHES: Final = 5

HEARTBEAT_MS: Final = 25_000
HELLO_MS: Final = 10_000
SUBSCRIPTIONS_PER_SOCKET: Final = 1_000


class Limits(msgspec.Struct, frozen=True):
    """What `welcome` tells a client about its socket."""

    client_frame_bytes: int = CLIENT_FRAME_BYTES
    server_frame_bytes: int = SERVER_FRAME_BYTES
    subscriptions: int = SUBSCRIPTIONS_PER_SOCKET
    subscription_limit: int = SUBSCRIPTION_LIMIT
