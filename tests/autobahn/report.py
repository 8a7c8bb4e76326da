"""Holds what Autobahn's client found against what is known, and prints the summary that SUMMARY.md keeps.

    python -m tests.autobahn.report INDEX_JSON...

Exits 1 if a case failed that is not in `KNOWN`, or if one in it no longer fails.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

KNOWN: Final[Mapping[str, str]] = {
    "7.1.5": "a close amid a fragmented message is answered with 1002 instead of 1000 by `websockets`' core; "
    "the peer leaves either way",
}
"""Cases that fail, each with the reason."""


def main() -> int:
    """Prints; 0 if nothing but what is known failed."""
    found: dict[str, dict[str, Any]] = {}
    for path in sys.argv[1:]:
        for cases in msgspec.json.decode(Path(path).read_bytes()).values():
            found.update(cases)
    order = sorted(found, key=lambda case: [int(part) for part in case.split(".")])
    verdicts = Counter(found[case]["behavior"] for case in order)
    print(f"{len(order)} cases: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    for verdict in ("NON-STRICT", "INFORMATIONAL"):
        print(f"{verdict}: " + " ".join(case for case in order if found[case]["behavior"] == verdict))
    fine = ("OK", "NON-STRICT", "INFORMATIONAL")
    failed = {case for case in order if found[case]["behavior"] not in fine or found[case]["behaviorClose"] not in fine}
    for case in order:
        if case in failed:
            row = found[case]
            print(f"{case} {row['behavior']}, close {row['behaviorClose']}: {KNOWN.get(case, 'NOT KNOWN')}")
    for case in sorted(set(KNOWN) - failed):
        print(f"{case} is known to fail and did not")
    return 0 if order and failed == set(KNOWN) else 1


if __name__ == "__main__":
    raise SystemExit(main())
