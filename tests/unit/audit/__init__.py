"""Histories without Spark."""
