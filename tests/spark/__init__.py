"""Motet in Spark, with real brokers."""
