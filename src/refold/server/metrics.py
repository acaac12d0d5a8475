"""Metrics: what a worker counted, in Prometheus' text format; names and numbers only, nothing of a request."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # seconds
# name → what it is, and what it means
KNOWN: dict[str, tuple[str, str]] = {
    "refold_gateway_requests_total": ("counter", "Requests by route and HTTP status (WebSocket: of the event)."),
    "refold_gateway_running": ("gauge", "Requests that run now."),
    "refold_gateway_events_total": ("counter", "Events passed on to clients."),
    "refold_gateway_compactions_total": ("counter", "Compactions by how they were asked for and made."),
    "refold_gateway_broken_streams_total": ("counter", "Answers that the upstream broke off."),
    "refold_gateway_abandoned_total": ("counter", "Requests whose client left before the answer was complete."),
    "refold_gateway_left_out_total": ("counter", "Requests of which something was not told the upstream."),
    "refold_gateway_unsaved_total": ("counter", "Responses that the store could not take."),
    "refold_gateway_seconds": ("histogram", "Seconds from a request to the end of its answer, by route."),
}


class Metrics:
    """Counters, gauges and one histogram of a worker. Mutable: it counts."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._buckets: dict[Labels, list[int]] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count something that `KNOWN` knows."""
        self._values[name][_labels(labels)] += amount

    def set(self, name: str, amount: float, **labels: str) -> None:
        """Say what a gauge shows now."""
        self._values[name][_labels(labels)] = amount

    def took(self, seconds: float, **labels: str) -> None:
        """One more request, and how long it took."""
        key = _labels(labels)
        counts = self._buckets.setdefault(key, [0] * (len(BUCKETS) + 1))
        counts[bisect_left(BUCKETS, seconds)] += 1
        self._values["refold_gateway_seconds"][key] += seconds

    def text(self) -> str:
        """Everything that was counted."""
        lines: list[str] = []
        for name, (kind, about) in KNOWN.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            if kind == "histogram":
                lines += self._histogram(name)
            else:
                lines += [
                    f"{name}{_shown(labels)} {_number(value)}" for labels, value in sorted(self._values[name].items())
                ]
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str) -> list[str]:
        lines: list[str] = []
        for labels, counts in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += count
                lines.append(f"{name}_bucket{_shown((*labels, ('le', bound)))} {total}")
            lines.append(f"{name}_sum{_shown(labels)} {_number(self._values[name][labels])}")
            lines.append(f"{name}_count{_shown(labels)} {total}")
        return lines


def _number(value: float) -> str:
    """All digits: six of them would let a counter stand still."""
    whole = int(value)
    return str(whole) if whole == value else repr(value)


def _labels(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _shown(labels: Labels) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return "{" + told + "}" if told else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
