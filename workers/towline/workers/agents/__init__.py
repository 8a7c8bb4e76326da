"""Workflows that come with Towline. Read `review.workflow` first: it is the example of how one is written."""
