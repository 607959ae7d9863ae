"""Runs in the quantize environment: makes a model of every scheme, and prints what came of it as one line of JSON.

compress_main.py SOURCE OUT RECIPES, where RECIPES is a JSON list of `[name, recipe, memory_bytes or null]`. One process
for all of them: llm-compressor takes ten seconds to import.
"""

import json
import sys
from pathlib import Path

from headway.domain import calibration
from headway.domain.value import digest
from headway.domain.weights import Recipe
from headway.errors import HeadwayError
from headway.pods import publish
from headway.pods.compress import compress


def main(source: Path, out: Path, asked: list[tuple[str, dict[str, object], int | None]]) -> None:
    """Make them."""
    rows = calibration.rows(calibration.bundled())
    found: dict[str, object] = {}
    for name, recipe, memory_bytes in asked:
        target = out / name
        target.mkdir()
        said: list[str] = []
        try:
            made = compress(
                source,
                target,
                Recipe.model_validate(recipe),
                rows,
                progress=lambda percent, message, said=said: said.append(message),  # type: ignore[misc]
                memory_bytes=memory_bytes,
            )
        except HeadwayError as error:
            found[name] = {"error": error.message, "kind": type(error).__name__}
            continue
        found[name] = {
            "digest": digest([file.to_json() for file in publish.list_files(target)]),
            "loaded": made.loaded,
            "errors": [error.to_json() for error in made.layer_errors],
            "progress": list(dict.fromkeys(said)),
        }
    print("FOUND " + json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
