"""Whether this session runs the long form of its tests (tests/run --soak).

Read once and taken out of the environment: the processes that tests start refuse TOWLINE_ variables that
are no setting of theirs.
"""

import os
from typing import Final

SOAK: Final = os.environ.pop("TOWLINE_SOAK", "") == "1"
