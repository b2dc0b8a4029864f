"""SVG charts. Colours and fonts come from the style sheet by class, since the pages allow no inline styles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from airflow_delta.ui.formats import compact, count_of, format_bytes, row_count

_WIDTH, _NARROW, _LEFT, _RIGHT = 960, 360, 64, 8
_MOST_NARROW = 30
_OPERATIONS_IN_LEGEND = 4
# A panel: its title, then the bars. The versions are below the last one.
_HEAD, _PLOT, _GAP, _AXIS = 20, 62, 8, 18
_PANEL = _HEAD + _PLOT + _GAP


def sparkline(values: Sequence[float | None], what: str, text: Callable[[Any], str]) -> Markup:
    """Return a row of small bars, oldest first, with a gap for ``None``, and what they show in words.

    :param what: what is counted: ``Rows in added files``.
    :param text: writes a value with its unit.
    """
    if not values:
        return Markup("")
    known = [value for value in values if value is not None]
    if not known:
        return Markup('<span class="spark"><span class="of">{} unknown</span></span>').format(what)
    highest = max(known)
    width, height = 132, 20
    slot = width / max(len(values), 12)
    thick = max(slot - 1.5, 1)
    drawn = [
        "" if value is None else f"M{width - (len(values) - index) * slot:.1f} {height}v-{tall:.1f}h{thick:.1f}v{tall:.1f}z"
        for index, value in enumerate(values)
        for tall in [_bar(value, highest, height)]
    ]
    # One path, not an element for each bar: a list has fifty tables, and a browser lays out every element.
    bars = Markup('<path class="bar" d="{}"></path><path class="bar last" d="{}"></path>').format("".join(drawn[:-1]), drawn[-1])
    latest = "unknown" if values[-1] is None else text(values[-1])
    label = f"{what} by {count_of(len(values), 'commit')}, oldest first: latest {latest}, largest {text(highest)}"
    return Markup(
        '<span class="spark"><span class="of">up to {most}</span>'
        '<svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        "<title>{label}</title>{bars}</svg></span>"
    ).format(most=text(highest), w=width, h=height, label=label, bars=bars)


def chart_legend(commits: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return what the colours of a chart mean, of those that are in it: kind and words, the latest commit's first.

    :param commits: as for :func:`commit_chart`.
    """
    operations: dict[str, dict[str, None]] = {}
    for commit in sorted(commits, key=lambda commit: -int(commit["version"])):
        operations.setdefault(commit["kind"], {})[commit["operation"] or "unknown operation"] = None
    entries = []
    for kind, found in operations.items():
        more = len(found) - _OPERATIONS_IN_LEGEND
        entries.append((kind, ", ".join([*list(found)[:_OPERATIONS_IN_LEGEND], *([f"{more} more"] if more > 0 else [])])))
    if any(commit["bytes_removed"] for commit in commits):
        entries.append(("taken", "bytes removed"))
    return entries


def commit_chart(commits: Sequence[Mapping[str, Any]], *, narrow: bool = False) -> Markup:
    """Return the chart of a history page: rows above, bytes below, one column for each commit, the lowest version on the left.

    :param commits: with ``version``, ``operation``, ``kind``, ``num_records``, ``bytes_added``, ``bytes_removed``, ``url``.
    :param narrow: for a narrow screen, of the latest of them.
    """
    if not commits:
        return Markup("")
    shown = sorted(commits, key=lambda commit: int(commit["version"]))[-_MOST_NARROW if narrow else 0 :]
    width = _NARROW if narrow else _WIDTH
    of = f" (latest {len(shown)} of {len(commits)})" if len(shown) < len(commits) else ""
    rows = [commit["num_records"] for commit in shown]
    unknown = f", unknown for {rows.count(None)}" if None in rows else ""
    panels = (
        _panel(shown, width, 0, f"Rows in added files{of}{unknown}", rows, None, compact),
        _panel(
            shown,
            width,
            _PANEL,
            f"Bytes added, removed{of}",
            [commit["bytes_added"] for commit in shown],
            [commit["bytes_removed"] for commit in shown],
            format_bytes,
        ),
    )
    axis = _axis(shown, width, 2 * _PANEL + 8)
    # A group, not an image: its columns are links.
    return Markup(
        '<svg class="chart {}" viewBox="0 0 {} {}" preserveAspectRatio="xMidYMid meet" role="group" '
        'aria-label="Rows in added files, bytes added and removed by versions {} to {}">{}{}{}</svg>'
    ).format(
        "narrow" if narrow else "broad",
        width,
        2 * _PANEL + _AXIS,
        shown[0]["version"],
        shown[-1]["version"],
        *panels,
        axis,
    )


def _panel(
    commits: Sequence[Mapping[str, Any]],
    full: int,
    top: int,
    title: str,
    up: Sequence[int | None],
    down: Sequence[int | None] | None,
    text: Any,
) -> Markup:
    """Return one panel; with ``down``, removals are drawn below the line."""
    highest = max((value for value in up if value), default=0)
    lowest = max((value for value in down if value), default=0) if down else 0
    # One scale for both directions.
    above = _PLOT * highest / (highest + lowest) if highest + lowest else _PLOT
    below = _PLOT - above
    start = top + _HEAD
    line = start + above
    parts = [
        Markup('<text class="title" x="{}" y="{}">{}</text>').format(_LEFT, top + 12, title),
        Markup('<line class="base" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"></line>').format(_LEFT, full - _RIGHT, y=line),
        Markup('<text class="tick" x="{}" y="{:.1f}">0</text>').format(_LEFT - 8, line + 3),
    ]
    if highest:
        parts += [
            Markup('<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"></line>').format(_LEFT, full - _RIGHT, y=start),
            # Not on top of the zero, however low the bars are.
            Markup('<text class="tick" x="{}" y="{:.1f}">{}</text>').format(_LEFT - 8, min(start + 4, line - 8), text(highest)),
        ]
    slot = _slot(commits, full)
    width = max(min(slot - 3, 26), 1.5)
    for index, (commit, value) in enumerate(zip(commits, up, strict=True)):
        x = _LEFT + index * slot + (slot - width) / 2
        taken = _bar(down[index], lowest, below) if down else 0.0
        parts.append(_column(commit, x, width, start, line, _bar(value, highest, above), taken))
    return Markup("").join(parts)


def _column(commit: Mapping[str, Any], x: float, width: float, start: float, line: float, up: float, down: float) -> Markup:
    """Return the bars of one commit as a link; the whole column is clickable, however small they are."""
    rows = "rows unknown" if commit["num_records"] is None else f"{row_count(commit['num_records'])} in added files"
    title = (
        f"Version {commit['version']}: {commit['operation'] or 'unknown operation'}\n{rows}, "
        f"{format_bytes(commit['bytes_added'])} added, {format_bytes(commit['bytes_removed'])} removed"
    )
    shape = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"></rect>')
    parts = [shape.format("target", x - 1, start, width + 2, _PLOT)]
    if up:
        parts.append(shape.format(f"up {commit['kind']}", x, line - up, width, up))
    if down:
        parts.append(shape.format("down", x, line, width, down))
    return Markup('<a href="{}" data-version="{}"><title>{}</title>{}</a>').format(
        commit["url"], commit["version"], title, Markup("").join(parts)
    )


def _slot(commits: Sequence[Mapping[str, Any]], full: int) -> float:
    """Return the width of a column with its gaps."""
    return (full - _LEFT - _RIGHT) / max(len(commits), 8 if full == _NARROW else 16)


def _axis(commits: Sequence[Mapping[str, Any]], full: int, y: float) -> Markup:
    slot, most = _slot(commits, full), 8 if full == _NARROW else 16
    step = max(-(-len(commits) // most), 1)
    return Markup('<text class="tick" x="{}" y="{:.1f}">Version</text>').format(_LEFT - 8, y) + Markup("").join(
        Markup('<text class="axis" x="{:.1f}" y="{:.1f}">{}</text>').format(_LEFT + index * slot + slot / 2, y, commit["version"])
        for index, commit in enumerate(commits)
        if (len(commits) - 1 - index) % step == 0
    )


def _bar(value: float | None, highest: float, height: float) -> float:
    """Return the height of a bar; any value but zero is visible."""
    if not value or not highest:
        return 0.0
    return max(value / highest * height, 1.5)
