"""Spark's daemon for Python workers, with Motet loaded. Workers are forked from it, for every plan
and for every task: each would load Motet again."""

from __future__ import annotations

from pyspark.daemon import manager

from motet.spark import source

__all__ = ["manager", "source"]

if __name__ == "__main__":
    manager()
