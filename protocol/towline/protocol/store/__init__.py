"""The log in Redis or Valkey: keys, scripts, and the only code that imports redis-py."""
