"""The report, from the files of a run alone: the same results give the same bytes.

Seconds are those that the results hold. A run that was killed and started again keeps those of the fits it had
finished, so that its report differs from that of another run in measured seconds and in nothing else.
"""

import base64
import html
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gpssm.errors import InvalidInput
from gpssm.experiments.base import Experiment
from gpssm.experiments.pages import Section, Table
from gpssm.experiments.tables import entry, line
from gpssm.plumbing.atomic import write_atomically
from gpssm.reproduction.plan import Job, experiment, group
from gpssm.reproduction.store import Store

TITLE = "Gaussian process state-space models: the experiments of the paper"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

VERDICTS = (
    "Verdicts: ahead of or behind the number that is printed for the same method, equal where the difference is within "
    "two standard errors (ours and, where it is printed, that of the paper)."
)

Found = list[tuple[Job, dict[str, Any] | None]]


def literal(text: str) -> str:
    """Any text as it is, in Markdown: what a cell holds may be the message of an error, with anything in it."""
    text = html.escape(" ".join(text.split()), quote=False)
    # An underscore inside a word, as in gas_furnace, is one.
    return re.sub(r"([\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text)


def _target(link: str) -> str:
    return link.replace(" ", "%20").replace("(", "%28").replace(")", "%29")


TEMPLATES = Environment(
    loader=PackageLoader("gpssm.reproduction"),
    autoescape=lambda name: name is not None and name.endswith(".html.j2"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"literal": literal, "target": _target, "base64": lambda png: base64.b64encode(png).decode()}


def write(store: Store) -> Path:
    """Write `report.md`, `report.html` and the figures of the former; return the latter."""
    sections = _sections(store)
    pictures = {f"figures/{figure.name}.png": figure.png for section in sections for figure in section.figures}
    (store.directory / "figures").mkdir(exist_ok=True)
    store.sweep(pictures)
    for name, png in pictures.items():
        write_atomically(store.directory / name, png)
    for name in ("report.md", "report.html"):
        text = TEMPLATES.get_template(f"{name}.j2").render(title=TITLE, sections=sections)
        write_atomically(store.directory / name, text.encode())
    return store.directory / "report.html"


def readme(store: Store, text: str) -> str:
    """`text` with the brief tables of the report between its two markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidInput(f"write: expected the lines {BEGIN} and {END} in the file, in this order.")
    tables = [table.without_files() for section in _sections(store) for table in section.tables if table.brief]
    return before + TEMPLATES.get_template("readme.md.j2").render(begin=BEGIN, end=END, tables=tables) + after


def _sections(store: Store) -> list[Section]:
    jobs, fast = store.plan()
    found: Found = [(job, store.read(job)) for job in jobs]
    experiments = {module: experiment(module) for module in dict.fromkeys(job.module for job in jobs)}
    shown = [
        each.section(group(pair for pair in found if pair[0].module == module)) for module, each in experiments.items()
    ]
    about = _about(found, fast, list(experiments.values()))
    return [about, *shown, *_failures(found), _settings(found), _machines(found)]


def _about(found: Found, fast: bool, experiments: Sequence[Experiment]) -> Section:
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
        left_out = "; ".join(each.LEFT_OUT for each in experiments)
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
    rows = tuple(line(name, method, " ".join(job.configuration.split())) for (name, method), job in shown.items())
    text = ("As of the first fit of each; what is given to a method, such as the noise of the data, is in every file.",)
    return Section("Settings", text, (Table("Settings", ("experiment", "method", "settings"), rows),))


def _machines(found: Found) -> Section:
    seen = Counter(
        json.dumps([record["machine"], record["versions"]], sort_keys=True) for _, record in found if record is not None
    )
    rows = []
    for key, count in sorted(seen.items()):
        machine, versions = json.loads(key)
        named = ", ".join(f"{name} {value}" for name, value in sorted(versions.items()))
        place = f"{machine['processor']}, {machine['cores']} cores"
        rows.append(line(place, machine["system"], named, str(count)))
    return Section(
        "Machines and versions", (), (Table("Where it ran", ("machine", "system", "versions", "fits"), tuple(rows)),)
    )
