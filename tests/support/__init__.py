"""What tests share: a real server of their own, waiting without sleeping."""
