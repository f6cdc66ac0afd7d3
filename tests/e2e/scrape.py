"""Reading what a metrics server shows."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import defaultdict

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Series:
    """Prometheus text as values by name and labels, summed over the tenants."""
    series: Series = defaultdict(float)
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        assert match, line
        labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")
        key = match[1].removeprefix("mooncake_store_")
        series[key, frozenset(pair for pair in labels if pair[0] != "tenant")] += float(match[3])
    return series


def value(series: Series, name: str, **labels: str) -> float:
    """The sum of the series that have these labels, whatever else they have."""
    wanted = set(labels.items())
    return sum(v for (n, have), v in series.items() if n == name and wanted <= have)


def fetch(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as reply:
        return str(reply.read().decode())


def status_of(address: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        return refused.code
