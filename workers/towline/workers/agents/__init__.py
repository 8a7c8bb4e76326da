"""Workflows that come with Towline; importing this registers them.

Read `review.workflow` first: it is the example of how one is written.
"""

import towline.workers.agents.review.workflow  # noqa: F401 - its decorator registers it
