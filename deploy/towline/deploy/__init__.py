"""Putting it together on a machine: the command line and the local stack with its embedded store."""
