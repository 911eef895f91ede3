"""The report, from the files of a run alone: the same results give the same bytes.

Seconds are those that the results hold. A run that was killed and begun again keeps those of the fits it had
finished, so that its report differs from that of another run in measured seconds and in nothing else.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpssm.errors import InvalidInput
from gpssm.plumbing.atomic import write_atomically
from gpssm.reproduction import pages
from gpssm.reproduction.numbers import VERDICTS
from gpssm.reproduction.pages import Section, Table, entry
from gpssm.reproduction.plan import Chapter, Job, chapter, group
from gpssm.reproduction.store import Store

TITLE = "Gaussian process state-space models: the experiments of the paper"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

Found = list[tuple[Job, dict[str, Any] | None]]


def write(store: Store) -> Path:
    """Write `report.md`, `report.html` and the figures of the former; return the latter."""
    sections = _sections(store)
    pictures = {f"figures/{figure.name}.png": figure.png for section in sections for figure in section.figures}
    (store.directory / "figures").mkdir(exist_ok=True)
    store.sweep(pictures)
    for name, png in pictures.items():
        write_atomically(store.directory / name, png)
    write_atomically(store.directory / "report.md", pages.markdown(TITLE, sections).encode())
    target = store.directory / "report.html"
    write_atomically(target, pages.page(TITLE, sections).encode())
    return target


def readme(store: Store, text: str) -> str:
    """`text` with the brief tables of the report between its two markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidInput(f"write: expected the lines {BEGIN} and {END} in the file, in this order.")
    lines = []
    for section in _sections(store):
        for table in section.tables:
            if table.brief:
                # The column that leads to files would lead nowhere.
                kept = table.columns.index("results by seed") if "results by seed" in table.columns else None
                rows = tuple(row[:kept] for row in table.rows)
                short = table._replace(columns=table.columns[:kept], rows=rows)
                lines += ["", f"{table.title}:", "", *pages.markdown_table(short, links=False)]
    return "\n".join([before + begin, *lines, "", end + after])


def _sections(store: Store) -> list[Section]:
    jobs, fast = store.plan()
    found: Found = [(job, store.read(job)) for job in jobs]
    modules = dict.fromkeys(job.module for job in jobs)
    chapters = [
        chapter(module).section(group(pair for pair in found if pair[0].module == module)) for module in modules
    ]
    about = _about(found, fast, [chapter(module) for module in modules])
    return [about, *chapters, *_failures(found), _settings(found), _machines(found)]


def _about(found: Found, fast: bool, chapters: Sequence[Chapter]) -> Section:
    done = [record for _, record in found if record is not None]
    failed = sum(record["error"] is not None for record in done)
    counts = f"{len(found)} fits: {len(done) - failed} done, {failed} failed, {len(found) - len(done)} not run yet."
    text = [
        f"What was run: {counts} Every number leads to the file of its fit, or to the directory with those of all "
        "seeds; a file holds the settings, the seed, the versions, the seconds and the result.",
        VERDICTS,
        "Where the text of the paper, its formulas and its released code differ, what was done and why is said above "
        "each table, and in docs/errata.md.",
    ]
    if fast:
        left_out = "; ".join(chapter_.LEFT_OUT for chapter_ in chapters)
        text.insert(0, f"This is the fast version, with one seed unless told otherwise. Left out: {left_out}.")
    costs: dict[str, list[float]] = {}
    for job, record in found:
        if record is not None:
            costs.setdefault(job.task.experiment, []).append(record["cpu_seconds"])
    rows = tuple(
        (
            entry(name),
            *(
                entry(text_, f"results/{name}/")
                for text_ in (str(len(own)), f"{sum(own) / len(own):.1f}", f"{sum(own) / 3600:.2f}")
            ),
        )
        for name, own in costs.items()
    )
    cost = Table("Cost", ("experiment", "fits", "CPU seconds a fit, compilation included", "CPU hours"), rows)
    return Section("What this is", tuple(text), (cost,))


def _failures(found: Found) -> list[Section]:
    rows = tuple(
        (entry(job.task.label, job.failed_file), entry(" ".join(record["error"].split())))
        for job, record in found
        if record is not None and record["error"] is not None
    )
    if not rows:
        return []
    text = ("Each leads to its file, with the log. `gpssm reproduce all --retry-failed` tries them again.",)
    return [Section("Failed fits", text, (Table("Failed fits", ("fit", "error"), rows),))]


def _settings(found: Found) -> Section:
    """One line for every method of an experiment: the settings of its first fit."""
    shown: dict[tuple[str, str], Job] = {}
    for job, _ in found:
        shown.setdefault((job.task.experiment, job.task.method), job)
    rows = tuple(
        (entry(experiment), entry(method), entry(" ".join(job.configuration.split())))
        for (experiment, method), job in shown.items()
    )
    text = ("As of the first fit of each; what is given to a method, such as the noise of the data, is in every file.",)
    return Section("Settings", text, (Table("Settings", ("experiment", "method", "settings"), rows),))


def _machines(found: Found) -> Section:
    seen = Counter(
        json.dumps([record["machine"], record["versions"]], sort_keys=True) for _, record in found if record is not None
    )
    rows = []
    for key, count in sorted(seen.items()):
        machine, versions = json.loads(key)
        told = ", ".join(f"{name} {value}" for name, value in sorted(versions.items()))
        place = f"{machine['processor']}, {machine['cores']} cores"
        rows.append((entry(place), entry(machine["system"]), entry(told), entry(str(count))))
    return Section(
        "Machines and versions", (), (Table("Where it ran", ("machine", "system", "versions", "fits"), tuple(rows)),)
    )
