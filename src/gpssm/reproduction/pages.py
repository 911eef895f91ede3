"""What a report is made of, and how it is written: as Markdown, and as one HTML file that needs no network."""

import base64
import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """A piece of a table's cell; with where it leads."""

    text: str
    link: str = ""


Entry = tuple[Part, ...]


class Table(NamedTuple):
    """Columns and rows. `brief` ones are also for the README."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""
    brief: bool = False


class Figure(NamedTuple):
    """A picture as PNG."""

    name: str
    caption: str
    png: bytes


class Section(NamedTuple):
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


def entry(text: str, link: str = "") -> Entry:
    return (Part(text, link),)


def markdown(title: str, sections: Sequence[Section]) -> str:
    """Figures are links to files in `figures/`."""
    lines = [f"# {title}", ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for paragraph in section.text:
            lines += [paragraph, ""]
        for table in section.tables:
            lines += [f"**{table.title}**", "", *markdown_table(table), ""]
        for figure in section.figures:
            lines += [f"![{figure.caption}](figures/{figure.name}.png)", "", f"*{figure.caption}*", ""]
    return "\n".join(lines)


def markdown_table(table: Table, links: bool = True) -> list[str]:
    """The lines of a table and of the note below it."""

    def shown(found: Entry) -> str:
        parts = (f"[{literal(p.text)}]({_target(p.link)})" if links and p.link else literal(p.text) for p in found)
        return " ".join(parts)

    return [
        _row(table.columns),
        _row(["---"] * len(table.columns)),
        *(_row(map(shown, row)) for row in table.rows),
        *(["", table.note] if table.note else []),
    ]


def literal(text: str) -> str:
    """Any text as it is, in Markdown: what a cell holds may be the message of an error, with anything in it."""
    text = html.escape(" ".join(text.split()), quote=False)
    # An underscore inside a word, as in gas_furnace, is one.
    return re.sub(r"([\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _target(link: str) -> str:
    return link.replace(" ", "%20").replace("(", "%28").replace(")", "%29")


_STYLE = """
:root { color-scheme: light dark; --faint: #8884; --link: #1f5fa8; }
@media (prefers-color-scheme: dark) { :root { --link: #8ab8ef; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; margin: .5em 0; }
caption { text-align: left; font-weight: 600; padding: .5em 0; }
th, td { border-bottom: 1px solid var(--faint); padding: .2em .7em; text-align: left; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; } td:last-child { white-space: normal; min-width: 6em; }
figure { margin: 1.5em 0; }
img { max-width: 100%; background: #fff; border-radius: 4px; } figcaption, .note { font-size: 13px; opacity: .8; }
"""


def page(title: str, sections: Sequence[Section]) -> str:
    """One HTML file: no script, no font and no picture from elsewhere."""
    body = [f"<h1>{html.escape(title)}</h1>", "<nav><ul>"]
    body += [f'<li><a href="#s{i}">{html.escape(section.title)}</a></li>' for i, section in enumerate(sections)]
    body += ["</ul></nav>"]
    for i, section in enumerate(sections):
        body.append(f'<h2 id="s{i}">{html.escape(section.title)}</h2>')
        body += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text]
        body += [_html_table(table) for table in section.tables]
        body += [_html_figure(figure) for figure in section.figures]
    # An icon of our own: browsers ask for one otherwise.
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f'<title>{html.escape(title)}</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head><body>',
            *body,
            "</body></html>\n",
        ]
    )


def _html_table(table: Table) -> str:
    def shown(found: Entry) -> str:
        parts = (
            f'<a href="{html.escape(p.link)}">{html.escape(p.text)}</a>' if p.link else html.escape(p.text)
            for p in found
        )
        return f"<td>{' '.join(parts)}</td>"

    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "\n".join(f"<tr>{''.join(map(shown, row))}</tr>" for row in table.rows)
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    caption = html.escape(table.title)
    return f'<div class="wide"><table><caption>{caption}</caption><tr>{head}</tr>\n{rows}</table></div>{note}'


def _html_figure(figure: Figure) -> str:
    caption = html.escape(figure.caption)
    source = base64.b64encode(figure.png).decode()
    return (
        f'<figure id="{html.escape(figure.name)}"><img alt="{caption}" src="data:image/png;base64,{source}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
