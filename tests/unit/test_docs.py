"""The documentation says what the code does: what is not written down, or no longer true, fails here."""

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from headway import errors
from headway.cli import COMMANDS, build
from headway.domain.profile import Profile
from headway.release.record import ERROR_OUTCOMES
from headway.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
README_LINES = 120


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tables() -> ModuleType:
    """Load the program that writes the tables; `docs` is no package."""
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def commands() -> dict[str, set[str]]:
    """Return every command of the command line with its options."""
    group: Any = typer.main.get_command(build(COMMANDS))
    return {
        name: {"--help", "--debug"}
        | {o for parameter in command.params for o in (*parameter.opts, *parameter.secondary_opts)}
        for name, command in group.commands.items()
    }


@cache
def make_targets() -> set[str]:
    """Return every target of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def error_classes() -> list[type[errors.HeadwayError]]:
    """Return every error of headway but the base."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    return [kind for kind in kinds if issubclass(kind, errors.HeadwayError) and kind is not errors.HeadwayError]


def code_of(page: Path) -> Iterator[str]:
    """Yield the lines of code of a page: fenced blocks and inline code."""
    for block in CODE.findall(page.read_text()):
        for line in block.strip("`").splitlines():
            yield line.split("  #")[0].strip()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs and GitHub make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.lower())).strip("-") for head in heads}


def test_the_readme_is_short() -> None:
    """Nobody reads a long README."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.parametrize(
    "table", ["profile", "accelerators", "schemes", "scheme-sources", "scheme-shapes", "ports", "settings", "errors"]
)
def test_a_generated_table_is_what_the_code_says(table: str) -> None:
    """Change the code and forget `python docs/tables.py`: this fails."""
    page, make = tables().TABLES[table]
    text = (DOCS / page).read_text()
    assert text == tables().filled(text, table, make()), f"docs/{page} is old; run `python docs/tables.py`"


def test_every_profile_key_is_explained() -> None:
    """A key without a meaning is a key that nobody dares to set."""
    known = {key.path for key in tables().keys(Profile)}
    assert known == set(tables().PROFILE_NOTES)
    page = (DOCS / "profiles.md").read_text()
    assert not [key for key in known if f"| `{key}` |" not in page]


def test_every_setting_is_explained() -> None:
    """A setting that is not on the page does not exist for a user."""
    page = (DOCS / "settings.md").read_text()
    assert not [name for name in Settings.model_fields if f"| `{PREFIX}{name.upper()}` |" not in page]


def test_every_error_is_explained() -> None:
    """Whoever meets an error finds out what it means and what to do."""
    page = (DOCS / "errors.md").read_text()
    assert not [kind.__name__ for kind in error_classes() if f"| `{kind.__name__}` |" not in page]


def test_retryable_errors_are_marked() -> None:
    """The page must not promise a retry that does not come."""
    page = (DOCS / "errors.md").read_text()
    marked = {line.split("──")[1].split()[0] for line in page.splitlines() if "(retryable)" in line}
    assert marked == {kind.__name__ for kind in error_classes() if kind.retryable}


def test_the_errors_page_says_how_a_release_ends() -> None:
    """Whether reconcile tries again by itself depends on it."""
    rows = [
        line.strip("| ").split(" | ")
        for line in (DOCS / "errors.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    said = {row[0].strip("`"): row[-1].strip("` ") for row in rows if len(row) == 4}
    assert said == {kind.__name__: ERROR_OUTCOMES.get(kind.__name__, "failed") for kind in error_classes()}


def test_every_command_is_in_the_documentation() -> None:
    """A command that no page mentions is one that nobody uses."""
    said = "\n".join(line for page in PAGES for line in code_of(page))
    assert not [name for name in commands() if not re.search(rf"headway {name}\b", said)]


def test_every_make_target_is_in_the_documentation() -> None:
    """The same for make."""
    said = "\n".join(line for page in PAGES for line in code_of(page))
    assert not [name for name in make_targets() if not re.search(rf"make (\w+ )*{name}\b", said)]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_page_names_only_commands_that_exist(page: Path) -> None:
    """A command that is copied from a page works."""
    wrong = []
    for line in code_of(page):
        for match in re.finditer(r"(?:^|bin/|\| |&& )headway ([a-z][a-z-]*)((?: [^|&#]*)?)", line):
            name, rest = match.groups()
            if name not in commands():
                wrong.append(f"headway {name}")
                continue
            options = re.findall(r"--[a-z][a-z-]*", rest)
            wrong += [f"headway {name} {option}" for option in options if option not in commands()[name]]
        for match in re.finditer(r"(?:^|&& |[A-Z_]+=\S+ )make ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", line):
            wrong += [f"make {target}" for target in match[1].split() if target not in make_targets()]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    """Links between pages, and to headings in them, are right on GitHub too, not only in the built site."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_files_that_are_named_exist(page: Path) -> None:
    """A path of the repository in a text is a path that is there."""
    prefixes = ("src/", "docs/", "local/", "profiles/", "tests/", "operators/", "dags/", "docker/")
    named = {word for line in code_of(page) for word in re.findall(r"[\w./-]+", line) if word.startswith(prefixes)}
    made_by_the_reader = {"profiles/my-model.yaml"}
    missing = [name for name in named - made_by_the_reader if not (ROOT / name).exists()]
    assert not missing


def test_environment_variables_that_are_named_exist() -> None:
    """A misspelt variable is silently ignored, so a page must not have one."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    files = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "local").glob("*.sh"),
        *(ROOT / "bin").iterdir(),
        ROOT / "Makefile",
    ]
    source = "\n".join(path.read_text() for path in files)
    named = {word for page in PAGES for word in re.findall(rf"\b{PREFIX}[A-Z_]+[A-Z]\b", page.read_text())}
    assert not [name for name in named - known if name not in source]


def test_the_quickstarts_python_is_python() -> None:
    """What a reader copies at least compiles."""
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "quickstart.md").read_text(), re.DOTALL):
        ast.parse(block)


def test_the_picture_is_readable_on_dark_and_light() -> None:
    """The picture brings its own background and colours for both, and says in words what it shows."""
    picture = (DOCS / "img" / "flow.svg").read_text()
    assert "prefers-color-scheme: dark" in picture
    assert "<title" in picture
    assert "<desc" in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_the_tables_program_finds_nothing_to_do() -> None:
    """`--check` is what a hook calls."""
    assert tables().main(["--check"]) == 0
