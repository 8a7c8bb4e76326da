"""The contract and the log: what every part of Towline agrees on.

Pure, except `store` (the only importer of redis) and `client` (the only importer of websockets).
`gateway` and `workers` meet only here and never import each other.

Read first: `events` (the vocabulary), then `run` (the fold), then `store.api` (what may happen to a log).
"""
