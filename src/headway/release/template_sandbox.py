"""The sandbox in which chat templates are tried: that of transformers, with a meter and with eyes.

Every operation is counted and the size of its result is limited *before* it is computed, so that a template which
would build gigabytes costs nothing here. What messages say is `Watched`: it sees what it is compared with.

The environment is that of transformers: `ImmutableSandboxedEnvironment`, `trim_blocks`, `lstrip_blocks`, loop controls,
`{% generation %}`, `raise_exception`, `strftime_now`, and its own `tojson`.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn, SupportsIndex

from jinja2 import nodes
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_NAMESPACE, DEFAULT_TESTS
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_TEXT_CHARACTERS = 256 * 1024
"""Of any text that a template builds; the longest of the well-known ones gives 20 000 for a short conversation."""
MAX_ITEMS = 10_000
MAX_STEPS = 1_000_000
"""Parts of expressions that are computed in one run; well-known templates take some thousands."""
MAX_WIDTH = 256
"""Of an indent or a padding."""
MAX_INT_BITS = 4096

FILTERS = frozenset({
    "abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "format",
    "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum",
    "title", "tojson", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
})  # fmt: skip
PADDING = frozenset({"batch", "indent", "round", "slice", "tojson", "truncate"})
COUNTING = frozenset({"float", "int", "wordcount"})
SEARCHES = frozenset({
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex",
    "rpartition", "rsplit", "split", "startswith",
})  # fmt: skip
CHANGES = frozenset({
    "capitalize", "casefold", "join", "lower", "lstrip", "rstrip", "splitlines", "strip", "swapcase", "title", "upper",
})  # fmt: skip
TEXT_METHODS = frozenset({
    *SEARCHES, *CHANGES, "format", "isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isnumeric", "isspace",
    "istitle", "isupper",
})  # fmt: skip

_OWN = frozenset({"step", "concat_parts", "contains"})
"""What `Meter` puts into templates."""
_WIDE = re.compile(r"\d{4}|\*")


class Broken(Exception):
    """A template did what no template may do; the text goes on from its name."""


class Declined(Exception):
    """A template called `raise_exception`, which is how it says that it does not do such conversations."""


def escape(name: str) -> str:
    """Say that somebody reaches for an internal."""
    return f"reaches for `{name[:60]}`, which is how sandboxes are left"


def is_word(text: str) -> bool:
    """Tell whether a text is a word of a language. Marks such as `</think>` or `/no_think` begin otherwise."""
    return text.strip()[:1].isalnum()


class Watched(str):
    """What a message (or the clock) says. It refuses to be searched for words, and so does what is made of it."""

    __slots__ = ()
    marks: set[str]
    """Marks that were looked for."""

    def look(self, *sought: Any) -> None:
        """See what this is compared with."""
        for item in sought:
            if isinstance(item, tuple | list):
                self.look(*item)
            elif isinstance(item, str) and not isinstance(item, Watched):
                if is_word(item):
                    raise Broken(f"decides by what a message (or the date) says: it looks for `{item.strip()[:40]}`")
                if item.strip():
                    self.marks.add(item)

    def __eq__(self, other: object) -> bool:
        self.look(other)
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __contains__(self, item: object) -> bool:
        self.look(item)
        return isinstance(item, str) and str.__contains__(self, item)

    def _ordered(self, other: str) -> NoReturn:
        raise Broken("decides by what a message (or the date) says: it compares it with another text")

    __lt__ = __le__ = __gt__ = __ge__ = _ordered

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        return type(self)(str.__getitem__(self, key))

    def __iter__(self) -> Iterator[str]:
        return map(type(self), str.__iter__(self))

    def __str__(self) -> str:
        return self


def _overridden(name: str, *, searches: bool) -> Callable[..., Any]:
    original = getattr(str, name)

    @functools.wraps(original)
    def method(self: Watched, *args: Any) -> Any:
        if searches:
            self.look(*args[:1])
        return _like(self, original(self, *args))

    return method


def _like(text: Watched, result: Any) -> Any:
    """Watch what was made of a watched text."""
    if isinstance(result, str):
        return type(text)(result)
    if isinstance(result, list | tuple):
        return type(result)(_like(text, item) for item in result)
    return result


for _name in SEARCHES | CHANGES:
    setattr(Watched, _name, _overridden(_name, searches=_name in SEARCHES))


def plain(text: str) -> str:
    """Return a text that nobody watches."""
    return "".join(str.__iter__(text)) if isinstance(text, Watched) else text


def _watched_in(values: Iterable[Any], depth: int = 6) -> Watched | None:
    """Return a watched text that is somewhere in the values."""
    for value in values:
        if isinstance(value, Watched):
            return value
        if depth and isinstance(value, Mapping | list | tuple):
            inner = value.values() if isinstance(value, Mapping) else value
            found = _watched_in(inner, depth - 1)
            if found is not None:
                return found
    return None


class _Generation(Extension):  # type: ignore[misc]
    """The tag `{% generation %}` of transformers, which marks what the assistant said."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        """Keep the body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):  # type: ignore[misc]
    """One template's environment."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False, cache_size=0
        )
        filters, tests, namespace = DEFAULT_FILTERS, DEFAULT_TESTS, DEFAULT_NAMESPACE["namespace"]
        self.steps = 0
        self.text: type[Watched] = type("Text", (Watched,), {"marks": set()})
        self.filters = {name: self._limited(name, filters[name]) for name in FILTERS}
        self.filters["tojson"] = self._limited("tojson", _to_json)
        self.tests = {name: self._seen(test) for name, test in tests.items()}
        self.concat = self._joined
        self.globals = {
            "dict": dict,
            "namespace": namespace,
            "range": self._range,
            "raise_exception": _decline,
            "strftime_now": self._now,
        }

    def step(self, parts: int = 1) -> bool:
        """Count; true, so that it can stand in a condition."""
        self.steps += parts
        if self.steps > MAX_STEPS:
            raise Broken(f"takes more than {MAX_STEPS} steps for a short conversation")
        return True

    def fits(self, size: int, limit: int = MAX_TEXT_CHARACTERS) -> None:
        """Refuse a size above a limit."""
        if size > limit:
            raise Broken(f"builds something of more than {limit} characters, items or bits for a short conversation")

    def concat_parts(self, *parts: Any) -> str:
        """Do `~`."""
        self.step()
        texts = [part if isinstance(part, str) else str(part) for part in parts]
        self.fits(sum(map(len, texts)))
        return str(self._passed("".join(map(plain, texts)), parts))

    def contains(self, item: Any, container: Any) -> bool:
        """Do `in`; a plain text would not ask a watched one."""
        self.step()
        if isinstance(item, Watched):
            item.look(list(container) if isinstance(container, Mapping) else container)
        return item in container

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Do an operation on two values, unless its result would be too large."""
        self.step()
        if operator == "%" and isinstance(left, str):
            self._fits_format(left, "%", (right,))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.fits(left.bit_length() * max(right, 0), MAX_INT_BITS)
        elif isinstance(left, int) and isinstance(right, int):
            self.fits(left.bit_length() + right.bit_length(), MAX_INT_BITS)
        elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.fits(len(left) + len(right), _limit(left))
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    self.fits(len(many) * times, _limit(many))
        return self._passed(super().call_binop(context, operator, left, right), (left, right))

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something, unless it is a method that can build a text of any size."""
        method = getattr(obj, "__wrapped__", obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if owner is self and name in _OWN:
            # The compiler hands the variables of loops on, to whoever is called.
            return obj(*args)
        self.step()
        if isinstance(owner, str):
            if name not in TEXT_METHODS:
                raise Broken(f"calls the method `{name}` of a text, which no chat template needs")
            if name == "join":
                args = (list(args[0]), *args[1:])
            self._fits_method(owner, name, args, kwargs)
        if isinstance(owner, Mapping) and any(isinstance(item, Watched) for item in args):
            raise Broken("decides by what a message (or the date) says: it looks it up in a table")
        result = super().call(context, obj, *args, **kwargs)
        return self._passed(result, (owner, *args, kwargs) if isinstance(owner, str) else (*args, kwargs))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Get an attribute that is not internal."""
        if attribute.startswith("_"):
            raise Broken(escape(attribute))
        if isinstance(obj, str) and not hasattr(str, attribute):
            # Nor may a template see that it is watched.
            return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Get an item, but not by what a message says."""
        if isinstance(obj, Mapping) and isinstance(argument, Watched):
            raise Broken("decides by what a message (or the date) says: it looks it up in a table")
        if isinstance(argument, str) and not isinstance(obj, Mapping):
            return self.getattr(obj, argument)
        return super().getitem(obj, argument)

    def _limited(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that looks at what it is given before it starts."""
        skipped = 1 if hasattr(original, "jinja_pass_arg") else 0

        @functools.wraps(original)
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.step()
            given = list(args[skipped:])
            if given and name == "join":
                given[0] = list(given[0])
            if given:
                self._fits_filter(name, given[0], [*given[1:], *kwargs.values()])
            return self._passed(original(*args[:skipped], *given, **kwargs), (*given, kwargs))

        return limited

    def _fits_filter(self, name: str, value: Any, rest: list[Any]) -> None:
        if name in PADDING:
            widths = [len(item) if isinstance(item, str) else item for item in rest]
            if any(isinstance(width, int | float) and abs(width) > MAX_WIDTH for width in widths):
                raise Broken(f"asks the filter `{name}` for more than {MAX_WIDTH} characters, lines or items")
        elif name in COUNTING and isinstance(value, Watched):
            raise Broken(f"decides by what a message (or the date) says: it counts with it (`{name}`)")
        elif name == "join":
            separator = len(str(rest[0])) if rest else 0
            self.fits(sum(len(str(item)) + separator for item in value))
        elif name == "replace" and isinstance(value, str):
            self._fits_method(value, "replace", tuple(rest), {})
            if isinstance(value, Watched):
                value.look(*rest[:1])
        elif name == "format" and isinstance(value, str):
            self._fits_format(value, "%", rest)

    def _seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a test (`is`) that sees what a message is compared with."""
        skipped = 1 if hasattr(original, "jinja_pass_arg") else 0

        @functools.wraps(original)
        def seen(*args: Any) -> Any:
            self.step()
            given = args[skipped:]
            for item in given:
                if isinstance(item, Watched) and len(given) > 1:
                    item.look(*(other for other in given if other is not item))
            return original(*args)

        return seen

    def _joined(self, pieces: Iterable[str]) -> str:
        """Put the pieces of a macro or a block together."""
        kept = list(pieces)
        self.fits(sum(map(len, kept)))
        return str(self._passed("".join(map(plain, kept)), kept))

    def _range(self, *args: int) -> range:
        made = range(*args)
        self.fits(len(made), MAX_ITEMS)
        return made

    def _now(self, form: str) -> str:
        self.fits(len(form), MAX_WIDTH)
        # Any day will do, and always the same.
        return str(self.text(datetime(2026, 1, 2, tzinfo=UTC).strftime(form)))

    def _passed(self, result: Any, made_of: Iterable[Any]) -> Any:
        """Check the size of a result; what is made of a message is watched as the message is."""
        if isinstance(result, str):
            self.fits(len(result))
            source = _watched_in(made_of)
            return result if source is None else type(source)(plain(result))
        if isinstance(result, list | tuple | dict):
            self.fits(len(result), MAX_ITEMS)
        return result

    def _fits_method(self, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
            self.fits(len(text) + str.count(text, plain(args[0])) * len(args[1]))
        elif name == "join":
            self.fits(sum(len(text) + len(item) for item in args[0] if isinstance(item, str)))
        elif name == "format":
            self._fits_format(text, "{", (*args, *kwargs.values()))

    def _fits_format(self, text: str, mark: str, values: Iterable[Any]) -> None:
        flat = [item for value in values for item in (value if isinstance(value, tuple) else (value,))]
        if mark in text and _WIDE.search(text):
            raise Broken("formats a text with a width of more than three digits")
        if mark == "{" and any(isinstance(value, int) and value > MAX_WIDTH for value in flat):
            raise Broken(f"formats a text with a number above {MAX_WIDTH}, which may be its width")
        longest = max((len(value) if isinstance(value, str) else 64 for value in flat), default=0)
        self.fits(len(text) + text.count(mark) * longest)


def _limit(value: Any) -> int:
    return MAX_TEXT_CHARACTERS if isinstance(value, str) else MAX_ITEMS


def _decline(message: Any) -> NoReturn:
    raise Declined(str(message)[:200])


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Do as transformers' own `tojson` does: no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Meter(NodeTransformer):  # type: ignore[misc]
    """Puts the meter into a template: into each loop and macro, and in place of `~` and `in`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2's spelling
        """Count each turn, also of the items that a condition skips."""
        parts = sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        node.body.insert(0, _silent(_own("step", nodes.Const(parts))))
        if node.test is not None:
            node.test = nodes.And(_own("step", nodes.Const(parts)), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802 - jinja2's spelling
        """Count each call."""
        parts = sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        node.body.insert(0, _silent(_own("step", nodes.Const(parts))))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2's spelling
        """Measure `~`."""
        self.generic_visit(node)
        return _own("concat_parts", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - jinja2's spelling
        """Watch `in`, from both of its sides."""
        self.generic_visit(node)
        if len(node.ops) == 1 and node.ops[0].op in ("in", "notin"):
            inside = _own("contains", node.expr, node.ops[0].expr)
            return inside if node.ops[0].op == "in" else nodes.Not(inside)
        return node


def _own(name: str, *arguments: nodes.Expr) -> nodes.Call:
    """Return a call of a method of the environment, which no name of a template can hide."""
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


def _silent(call: nodes.Call) -> nodes.Node:
    """Return a statement that calls and prints nothing."""
    return nodes.If(nodes.Not(call), [], [], [])
