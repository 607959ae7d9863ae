"""The rules for chat templates: a template lays messages out, and does nothing else.

A template is a program that comes with a model and turns every request into the model's input. Engines run it in a
sandbox that keeps it from the machine, but not from building a text of any size, and not from answering to a word of
the user with an instruction of its own. So here each template is read, and then run on a few conversations in a sandbox
that counts and sees (`headway.release.template_sandbox`):

- it compiles, reaches for no internals, and loads no other file;
- it stays within limits of steps and sizes;
- what users say is in the result;
- it does not decide by words of a message. Marks such as `</think>` or `/no_think` are no words, and may be looked for
  as long as they bring no sentence with them.

What is not found: a trigger that lies in the number of messages, or one that only a rare branch looks for. Whoever
wants certainty pins the template (`weights.chat_template_sha256`).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import TemplateError, nodes

from headway.release.template_sandbox import FILTERS, Broken, Declined, Meter, Sandbox, escape, plain

MAX_SOURCE_CHARACTERS = 512 * 1024
MARK_WORDS = 3
"""Words that a mark in a message may bring into the prompt (Qwen's `/no_think` brings an empty `<think>`)."""

WAYS_OUT = frozenset({"cycler", "joiner", "lipsum", "self", "request", "config", "url_for"})
"""Names that lead to Python's internals in some environment, and that no template needs."""

LOADERS = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)

CANNOT = (Declined, TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError)
"""What a template raises that does not do such a conversation (no systems, no tools). Engines pass it on."""

SHORT = "quartz umbrella 7"
LONG = "Please compare " + "several lengthy paragraphs about copper kettles, " * 30 + "and then stop"
"""Two texts as unlike as can be; what surrounds them must be the same."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tell the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Its name."}},
                "required": ["city"],
            },
        },
    }
]
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
CALL_AS_TEXT = {**CALL, "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}

USER, ASSISTANT = {"role": "user", "content": "{text}"}, {"role": "assistant", "content": "{text}"}
SYSTEM = {"role": "system", "content": "{text}"}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "{text}"}
CONVERSATIONS: Mapping[str, list[dict[str, Any]]] = {
    "question": [USER],
    "system": [SYSTEM, USER],
    "dialogue": [USER, ASSISTANT, USER],
    "long dialogue": [SYSTEM, USER, ASSISTANT, USER, ASSISTANT, USER],
    "tools": [SYSTEM, USER],
    "tool result": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, ASSISTANT, USER],
    "tool result, arguments as text": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL_AS_TEXT]},
        RESULT,
        ASSISTANT,
        USER,
    ],
}


def faults_of(template: Any) -> Iterator[str]:
    """Yield what is wrong with a template, or with each in a list of named ones."""
    if isinstance(template, str):
        yield from faults(template)
        return
    for item in template if isinstance(template, list) else [template]:
        if not isinstance(item, dict) or not isinstance(item.get("template"), str):
            yield "is neither a text nor a list of named texts"
            return
        for fault in faults(item["template"]):
            yield f"(named {str(item.get('name'))[:40]}) {fault}"


def faults(source: str) -> list[str]:
    """Return what is wrong with a template, one sentence each that goes on from its name; empty: nothing is."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        return [f"has {len(source)} characters; at most {MAX_SOURCE_CHARACTERS} are read"]
    found: list[str] = []
    try:
        found += dict.fromkeys(_structure(Sandbox().parse(source)))
        if not found:
            _Trial(source).run()
    except Broken as error:
        found.append(str(error))
    except TemplateError as error:
        found.append(f"is no template that transformers can read: {_words(error)}")
    except (RecursionError, MemoryError):
        found.append("is nested too deeply")
    except Exception as error:  # noqa: BLE001 - it is a foreign program: whatever goes wrong is a fault of its own
        found.append(f"cannot be used: {_words(error)}")
    return found


def _structure(tree: nodes.Template) -> Iterator[str]:
    """Find what shows without running it."""
    for node in tree.find_all(nodes.Node):
        if isinstance(node, LOADERS):
            yield "loads another file"
        elif isinstance(node, nodes.Name) and node.ctx == "load" and node.name in WAYS_OUT:
            yield f"uses `{node.name}`, through which sandboxes are left"
        elif isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
            yield escape(node.attr)
        elif isinstance(node, nodes.Const) and isinstance(node.value, str) and re.search(r"__\w+__", node.value):
            yield escape(node.value)
        elif isinstance(node, nodes.Filter) and node.name not in FILTERS:
            yield f"uses the filter `{node.name}`, which no chat template needs"


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


NOTHING: dict[str, Any] = {"tools": None, "documents": None}
DOCUMENT = {"title": "Kettles", "text": "They are of copper.", "contents": "They are of copper."}
FORMS: tuple[tuple[bool, dict[str, Any]], ...] = (
    (False, NOTHING),
    (True, NOTHING),
    # The named templates of Command R and Hermes are for these only.
    (False, {"tools": TOOLS, "documents": [DOCUMENT]}),
)
"""Whether messages are lists of parts, and what comes with them."""


class _Trial:
    """One template on its trial.

    Args:
        source: The template.
    """

    def __init__(self, source: str) -> None:
        self._environment = Sandbox()
        tree = Meter().visit(self._environment.parse(source))
        for node in tree.find_all(nodes.Node):
            node.lineno = node.lineno or 1
        tree.set_environment(self._environment)
        try:
            self._template = self._environment.from_string(tree)
        except (SyntaxError, MemoryError) as error:
            raise Broken(f"cannot be compiled: {_words(error)}") from error
        self._parts = False
        self._extras = NOTHING

    def run(self) -> None:
        """Run it, and raise `Broken` at the first thing that is wrong."""
        for form in self._forms():
            self._parts, self._extras = form
            for name in CONVERSATIONS:
                self._compare(name)
            for mark in sorted(self._environment.text.marks):
                self._try_mark(mark)

    def _forms(self) -> list[tuple[bool, dict[str, Any]]]:
        """Return in which forms it lays out a question: messages as texts, as lists of parts, with tools."""
        good: list[tuple[bool, dict[str, Any]]] = []
        said = ""
        for form in FORMS:
            self._parts, self._extras = form
            try:
                short, long = self._run("question", SHORT), self._run("question", LONG)
            except CANNOT as error:
                said = said or f"cannot lay out a single question: {_words(error)}"
                continue
            if SHORT in short and LONG in long:
                good.append(form)
            elif short != long and not self._parts:
                # One that wants parts finds nothing at all in a text; this one found some of it.
                raise Broken("drops some of what the user says")
            said = said or "drops what the user says"
        if not good:
            raise Broken(said)
        return good

    def _compare(self, name: str) -> None:
        """Lay out the same conversation with other words."""
        around = []
        for text in (SHORT, LONG):
            try:
                result = self._run(name, text)
            except CANNOT:
                # It does not do such conversations (systems, tools), and says so to whoever asks.
                return
            said = sum(message["role"] == "user" for message in CONVERSATIONS[name])
            if result.count(text) < said:
                raise Broken(f"drops what the user says ({name})")
            around.append(result.replace(text, "\0"))
        if around[0] != around[1]:
            raise Broken(f"lays out the same conversation ({name}) differently when other words are said in it")

    def _try_mark(self, mark: str) -> None:
        """See whether a mark in a message brings a sentence into the prompt.

        Systems are written by whoever runs the model, and may have switches in them (SmolLM3's `/no_think`).
        """
        for name in CONVERSATIONS:
            for text in (f"{mark} {SHORT}", f"{SHORT} {mark}", mark):
                try:
                    added = Counter(_spoken(self._run(name, text, SHORT))) - Counter(_spoken(self._run(name, SHORT)))
                except CANNOT:
                    continue
                words = [word for word in added.elements() if word not in _spoken(text)]
                if len(words) > MARK_WORDS:
                    shown = " ".join(words[:8])
                    raise Broken(f"adds words of its own ({shown} ...) when a message has `{mark.strip()[:40]}` in it")

    def _run(self, name: str, text: str, system: str | None = None) -> str:
        """Lay a conversation out, in which everybody says `text` (but systems `system`)."""
        environment = self._environment
        environment.steps = 0
        extras = {**self._extras, **({"tools": TOOLS} if name.startswith("tool") else {})}
        messages = [
            self._message(message, text if message["role"] != "system" or system is None else system)
            for message in CONVERSATIONS[name]
        ]
        pieces: list[str] = []
        try:
            for piece in self._template.generate(messages=messages, add_generation_prompt=True, **extras, **TOKENS):
                pieces.append(plain(piece))
                environment.fits(sum(map(len, pieces)))
        except RecursionError as error:
            raise Broken("calls itself without end") from error
        return "".join(pieces)

    def _message(self, message: Mapping[str, Any], text: str) -> dict[str, Any]:
        if message.get("content") != "{text}":
            return dict(message)
        content: Any = self._environment.text(text)
        return {**message, "content": [{"type": "text", "text": content}] if self._parts else content}


def _spoken(text: str) -> list[str]:
    """Return the words outside of marks."""
    return re.findall(r"[^\W\d_]{2,}", re.sub(r"<[^<>\s]*>|\[/?[A-Z_]+\]", " ", text))
