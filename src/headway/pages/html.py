"""The parts that a page of the report is built of: plain HTML that needs nothing beside it."""

import html
import re
from collections.abc import Iterable, Sequence

from headway.domain.release import Check

UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls, halves of characters, and marks that turn the direction of writing: no server's text may hide another."""


def whole(title: str, body: str) -> bytes:
    """Return a page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    ).encode()


def section(title: str, content: str, anchor: str = "") -> str:
    """Return a part of the page under its title."""
    named = f' id="{anchor}"' if anchor else ""
    return f"<section{named}><h2>{esc(title)}</h2>{content}</section>"


def note(title: str, content: str) -> str:
    """Return a remark that is not overlooked; `content` is HTML already."""
    return f'<p class="note"><strong>{esc(title)}</strong> {content}</p>'


def badge(kind: str, word: str) -> str:
    """Return a coloured word; kinds are `good`, `bad` and `wait`."""
    return f'<span class="badge {kind}">{esc(word)}</span>'


def command(line: str) -> str:
    """Return a line for a shell."""
    return f'<pre class="scroll"><code>{esc(line)}</code></pre>'


def bullets(items: Iterable[str]) -> str:
    """Return a list of plain texts; empty of none."""
    lines = "".join(f"<li>{esc(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def check_rows(checks: Iterable[Check]) -> list[tuple[str, str, str]]:
    """Return rows of a table of checks: name, sentence and how it went, the failed ones first."""
    rows = []
    for check in sorted(checks, key=lambda check: check.passed):
        missing = not check.passed and check.measured is None and check.kind != "contract"
        mark = badge("good", "pass") if check.passed else badge("wait", "missing") if missing else badge("bad", "fail")
        rows.append((esc(check.name), esc(check.sentence), mark))
    return rows


def figure(caption: str, svg: str) -> str:
    """Return a drawing with its caption; empty without a drawing."""
    return f"<figure>{svg}<figcaption>{esc(caption)}</figcaption></figure>" if svg else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Build a table; cells of `rows` are HTML already."""
    top = "".join(f'<th scope="col">{esc(cell)}</th>' for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    header = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return f'<div class="scroll"><table class="{kind}">{header}<tbody>{lines}</tbody></table></div>'


def esc(text: str) -> str:
    """Return a text that is no HTML, with a mark in place of what cannot be shown."""
    return html.escape(UNSHOWABLE.sub("\ufffd", text), quote=True)


STYLE = """
:root { --ink:#1d2330; --muted:#6f7888; --page:#f6f7f9; --card:#fff; --line:#e1e5eb;
  --stable:#4b6b9a; --candidate:#c8701a; --good:#1f7a45; --bad:#c0353a; --wait:#96690a }
@media (prefers-color-scheme: dark) { :root { --ink:#e4e8ee; --muted:#8f99a8; --page:#12151b; --card:#1a1f28;
  --line:#2c333f; --stable:#8fb3e8; --candidate:#f0a35a; --good:#5cc98a; --bad:#ff7a7e; --wait:#e6b84f } }
* { box-sizing:border-box }
body { margin:0; background:var(--page); color:var(--ink); font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif }
main { max-width:60rem; margin:0 auto; padding:1rem }
header { padding:.5rem 0 }
h1 { font-size:1.6rem; margin:.3rem 0; overflow-wrap:anywhere }
h1 span { font-weight:400 }
h2 { font-size:1.1rem; margin:0 0 .6rem }
p, li { overflow-wrap:anywhere }
.lead { font-size:1.1rem; margin:.2rem 0 }
.meta, figcaption { color:var(--muted); font-size:.85rem }
ul { padding-left:1.2rem; margin:.4rem 0 }
section, .note { background:var(--card); border:1px solid var(--line); border-radius:.5rem; padding:1rem;
  margin:1rem 0 }
.note { border-left:4px solid var(--wait) }
.scroll { overflow-x:auto }
table { border-collapse:collapse; width:100%; font-size:.9rem }
th, td { text-align:left; padding:.35rem .8rem .35rem 0; border-bottom:1px solid var(--line); vertical-align:top }
th { color:var(--muted); font-weight:500 }
tr:last-child td { border-bottom:0 }
code { font-size:.8rem; overflow-wrap:anywhere }
pre { margin:.4rem 0; padding:.5rem .7rem; background:var(--page); border:1px solid var(--line); border-radius:.3rem }
pre code { overflow-wrap:normal }
small { color:var(--muted) }
.numbers td:not(:first-child), .badge { white-space:nowrap }
.badge { display:inline-block; margin:0; padding:.05rem .5rem; border-radius:1rem; font-size:.8rem; font-weight:600;
  border:1px solid currentColor }
.good { color:var(--good) }
.bad { color:var(--bad) }
.wait { color:var(--wait) }
.figures { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr)); gap:0 1.5rem;
  align-items:start }
figure { margin:1rem 0; max-width:36rem }
svg { width:100%; height:auto; display:block }
svg text { font-family:system-ui,sans-serif !important }
.bar { display:flex; height:1rem; border-radius:.5rem; overflow:hidden; background:var(--line); margin-bottom:.6rem }
.dot { display:inline-block; width:.7em; height:.7em; border-radius:50%; margin-right:.5em }
"""
