"""The same seed gives the same run: in this process, in another, under another hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from motet.testing.simulation import merge, run_seeds, simulate

PROGRAM = """
from motet.testing.simulation import run_seeds
print(run_seeds(range(3), "mixed").trace_hash, run_seeds(range(2), "crash").trace_hash)
"""


def in_another_process(hash_seed: str, matcher: str = "") -> list[str]:
    surroundings = os.environ | {"PYTHONHASHSEED": hash_seed}
    if matcher:
        surroundings["MOTET_MATCHER"] = matcher
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=surroundings,
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.split()


def test_the_trace_does_not_depend_on_the_process() -> None:
    here = [run_seeds(range(3), "mixed").trace_hash, run_seeds(range(2), "crash").trace_hash]
    assert in_another_process("0") == here
    assert in_another_process("4711") == here


def test_the_trace_does_not_depend_on_the_matcher() -> None:
    assert in_another_process("1", "python") == in_another_process("2")


def test_seeds_differ_and_the_order_of_runs_does_not_matter() -> None:
    forth = [simulate(seed, "lossy") for seed in (1, 2, 3)]
    back = [simulate(seed, "lossy") for seed in (3, 2, 1)][::-1]
    assert merge(forth).trace_hash == merge(back).trace_hash
    assert len({result.trace_hash for result in forth}) == 3


def test_several_processes_give_the_same_result() -> None:
    alone, shared = run_seeds(range(4), "calm"), run_seeds(range(4), "calm", processes=2)
    assert alone == shared


@pytest.mark.parametrize("profile", ["calm", "mixed"])
def test_telling_the_story_does_not_change_the_trace(profile: str) -> None:
    assert simulate(3, profile, story=True).trace_hash == simulate(3, profile).trace_hash
