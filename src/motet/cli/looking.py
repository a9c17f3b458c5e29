"""What brokers say of their links, all together."""

from __future__ import annotations

from collections.abc import Mapping

from motet.client.inquiry import Answer, ask, ask_all
from motet.errors import MotetError

__all__ = ["Answer", "ask", "ask_all", "missing_links"]


def missing_links(answers: Mapping[str, Answer]) -> list[str]:
    """Links that are not up at both ends, and brokers that do not answer."""
    missing = []
    for name, answer in answers.items():
        if isinstance(answer, MotetError):
            missing.append(f"{name} does not answer")
            continue
        missing += [
            f"{name}–{other} is {link['phase']}"
            for other, link in answer["links"].items()
            if link["phase"] != "up"
        ]
        missing += [
            f"{name}–{other} is down"
            for other, member in ((answer["cell"] or {}).get("members") or {}).items()
            if not member["live"]
        ]
    return missing


def unsettled_links(answers: Mapping[str, Answer]) -> list[str]:
    """Links that are not up, or on which something is not acknowledged yet."""
    waiting = missing_links(answers)
    for name, answer in answers.items():
        if not isinstance(answer, MotetError):
            waiting += [
                f"{name} has {link['unacknowledged']} messages that {other} did not acknowledge"
                for other, link in answer["links"].items()
                if link["unacknowledged"]
            ]
    return waiting
