"""Files that an older release wrote, and that every later one must be able to read."""
