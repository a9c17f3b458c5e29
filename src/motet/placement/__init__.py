"""Placement of topics: at which site each topic should live, and how the sites stand in their line.

Lives here: the graph of topics that such a plan is made from, the delays of links, what a placement
is predicted to cost, and the local search for a better one.
Pure: it may import errors only, and it must never read a clock, a file or a socket. The same graph,
delays and seed give the same plan.

    graph = TopicGraph(sites=("S1", "S2"))
    graph.published("orders", at="S1", count=120)
    graph.combined(("orders", "prices"))            # a session has both
    delays = LinkDelays.uniform(graph.sites, near_ms=10, far_ms=100)
    plan = best_placement(graph, delays, mode="causal", seed=1)
    print(predict(graph, plan, delays, mode="causal").mean_ms, plan.line, plan.homes)

Test this room: `pytest tests/unit/placement`
"""
