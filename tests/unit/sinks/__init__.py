"""Sinks: staging, commits, and copying into the log."""
