"""The graph of topics of a recorded history, from which `motet.placement` plans where topics live.

    graph = topic_graph(motet.spark.session("placement"), "history", sites=("S1", "S2"))

Lives here: Spark jobs that count publications and pairs of topics.
May import: `motet.placement`, `motet.audit`, `motet.errors`; pyspark.
Must never: bring more to the driver than a row for each topic and place, and for each pair of
topics.

Test only this room: `pytest tests/spark/test_placement.py`
"""

from motet.spark.placement.graph import topic_graph

__all__ = ["topic_graph"]
