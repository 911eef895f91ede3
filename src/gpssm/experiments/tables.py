"""Tables: numbers as entries that lead to the files they come from, beside those that are printed."""

from collections.abc import Callable, Sequence

from gpssm.experiments.base import Group
from gpssm.experiments.estimates import Estimate, mean, text
from gpssm.experiments.pages import FILES, Entry, Part, Row, Table

Column = Callable[[Group], Entry]


def entry(text: str, link: str = "") -> Entry:
    """An entry of one piece."""
    return (Part(text, link),)


def line(*texts: str) -> Row:
    """A row of texts that lead nowhere."""
    return tuple(entry(text) for text in texts)


def number(group: Group, estimate: Estimate, digits: int = 3) -> Entry:
    """As text that leads to the result, or to the directory with those of all seeds; or why there is none."""
    if not estimate.seeds:
        return entry("failed" if group.failed else "not run")
    return entry(text(estimate, digits), group.files[0][1] if len(group.files) == 1 else f"{group.folder}/")


def value(
    *path: str | int,
    digits: int = 3,
    middle: Callable[[Sequence[float]], Estimate] = mean,
    error: bool = False,
    scale: float = 1.0,
) -> Column:
    """A column with the mean (or another `middle`) of a number over seeds.

    Args:
        path: the name of the number in the results, after those of what it is part of.
        digits: after the point.
        middle: the mean or the median.
        error: whether its standard error is shown, too.
        scale: what numbers are multiplied by, for other units.
    """

    def shown(group: Group) -> Entry:
        estimate = middle([scale * each for each in group.values(*path)])
        return number(group, estimate if error else estimate._replace(error=None), digits)

    return shown


def method_name(group: Group) -> Entry:
    """The column of names."""
    return entry(group.method)


def printed(estimate: Estimate | None, digits: int = 3) -> Entry:
    """A number of somebody else's, or nothing."""
    return entry("" if estimate is None else text(estimate, digits))


def files(group: Group) -> Entry:
    """Every seed, leading to its file."""
    return (
        *(Part(str(seed), file) for seed, file in group.files),
        *(Part(f"{seed} failed", file) for seed, file in group.failed),
        *(Part(f"{seed} not run") for seed in group.missing),
    )


def table(
    title: str, groups: Sequence[Group], columns: dict[str, Column], note: str = "", brief: bool = False
) -> Table:
    """A row for every group: what each column, by its heading, makes of it, and its files at the end."""
    columns = columns | {FILES: files}
    rows = tuple(tuple(column(group) for column in columns.values()) for group in groups)
    return Table(title, tuple(columns), rows, note, brief)


def over_seeds(groups: Sequence[Group]) -> str:
    """How many seeds the numbers of every method are over."""
    counts: dict[str, set[int]] = {}
    for group in groups:
        counts.setdefault(group.method, set()).add(len(group.results))
    spans: dict[str, list[str]] = {}
    for method, found in counts.items():
        low, high = min(found), max(found)
        spans.setdefault(f"{high}" if low == high else f"{low} to {high}", []).append(method)
    if len(spans) == 1:
        return f"Seeds: {next(iter(spans))}."
    return "Seeds: " + "; ".join(f"{span} ({', '.join(methods)})" for span, methods in spans.items()) + "."


def as_printed(
    title: str,
    groups: Sequence[Group],
    column: Callable[[Group], str],
    name: str,
    quoted: Callable[[Group], Estimate | None],
    digits: int = 3,
) -> Table:
    """A table as the paper prints it: a row for every method, below it one of the printed numbers, if there are any.

    Args:
        title: of the table.
        groups: one for every entry.
        column: the heading that a group stands under.
        name: of the number in the results.
        quoted: the printed number of a group.
        digits: after the point.
    """
    columns = list(dict.fromkeys(map(column, groups)))
    found = {(group.method, column(group)): group for group in groups}
    rows: list[Row] = []
    for method in dict.fromkeys(group.method for group in groups):
        own = [found.get((method, each)) for each in columns]
        ours = (entry("") if group is None else number(group, mean(group.values(name)), digits) for group in own)
        rows.append((entry(method), *ours))
        theirs = [None if group is None else quoted(group) for group in own]
        if any(theirs):
            rows.append((entry(f"{method}, printed"), *(printed(each, digits) for each in theirs)))
    return Table(title, ("method", *columns), tuple(rows), over_seeds(groups), True)
