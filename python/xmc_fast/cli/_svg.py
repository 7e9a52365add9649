"""The demo's picture. The core install has no matplotlib, and a bar chart in SVG is a page of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from xmc_fast._files import write_text

COLOURS = ("#3b6ea5", "#7aa6d6", "#c3d9ef", "#e0902f", "#f0c48a")


def grouped_bars(path: Path, groups: Mapping[str, Sequence[float]], names: Sequence[str], title: str) -> None:
    """One group of bars per key of ``groups``, one bar per name; values from 0 to 100."""
    bar, gap, height, top, left = 34, 26, 220, 46, 46
    width = left + len(groups) * (len(names) * bar + gap) + 16
    parts = [f'<text x="{left}" y="22" font-size="15">{escape(title)}</text>']
    for tick in range(0, 101, 20):
        y = top + height * (1 - tick / 100)
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{tick}</text>')
    for g, (group, values) in enumerate(groups.items()):
        x0 = left + gap / 2 + g * (len(names) * bar + gap)
        for b, value in enumerate(values):
            x, h = x0 + b * bar, height * min(max(value, 0), 100) / 100
            colour = COLOURS[b % len(COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{top + height - h:.1f}" width="{bar - 4}" height="{h:.1f}" fill="{colour}"/>'
            )
            parts.append(
                f'<text x="{x + bar / 2 - 2:.1f}" y="{top + height - h - 5:.1f}" font-size="11"'
                f' text-anchor="middle">{value:.1f}</text>'
            )
            parts.append(
                f'<text x="{x + bar / 2 - 2:.1f}" y="{top + height + 15}" font-size="11" fill="#555"'
                f' text-anchor="middle">{escape(names[b])}</text>'
            )
        middle = x0 + len(names) * bar / 2
        parts.append(
            f'<text x="{middle:.1f}" y="{top + height + 34}" font-size="13" text-anchor="middle">{escape(group)}</text>'
        )
    box = f'width="{width}" height="{top + height + 48}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">'
    background = '<rect width="100%" height="100%" fill="white"/>'
    write_text(path, "\n".join([head, background, *parts, "</svg>", ""]))
