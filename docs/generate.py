"""Write the parts of the pages that the code knows better: ``make docs``; ``--check`` says what is out of date.

A page names such a part in the line before it, and what stands between the two lines is overwritten:

    <!--make docs: GENERATOR ARGUMENT...-->
    <!--end-->

``GENERATORS`` holds the function of every generator; it takes the arguments as texts and returns Markdown. To have a
new table in a page, write its function here (it imports what it needs itself), add it to ``GENERATORS``, put the two
lines into the page and run ``make docs``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

if TYPE_CHECKING:
    from gpusonde.service.config import Configuration

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/**/*.md", "deploy/**/*.md")

_PART = re.compile(r"(^<!--make docs: (?P<words>[^\n]+?)-->\n)(?P<text>.*?)(^<!--end-->$)", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Find the pages that may have generated parts."""
    return sorted(path for pattern in PAGES for path in ROOT.glob(pattern))


def parts(text: str) -> list[list[str]]:
    """Return the words of every generated part of a page, the generator first."""
    return [match["words"].split() for match in _PART.finditer(text)]


def regenerate(text: str) -> str:
    """Return a page with its generated parts as they should be.

    Raises:
        KeyError: There is no such generator.
    """

    def replaced(match: re.Match[str]) -> str:
        generator, *arguments = match["words"].split()
        return f"{match[1]}\n{GENERATORS[generator](*arguments).strip()}\n\n{match[4]}"

    return _PART.sub(replaced, text)


def expected(path: Path, text: str) -> str:
    """Return what a file that holds ``text`` should hold."""
    write = FILES.get(path.relative_to(ROOT).as_posix())
    return write() if write else regenerate(text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Draw a table of Markdown; a bar in a cell is escaped."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", r"\|").strip() for cell in line] for line in lines]
    text = "\n".join("| " + " | ".join(line) + " |" for line in cells)
    return re.sub(r"(?<=\|)  (?=\|)", " ", text).replace("| --- ", "|---").replace("|--- |", "|---|")


def listing(rows: Iterable[tuple[str, str]]) -> str:
    """Draw names with their meanings as a list of Markdown."""
    return "\n".join(f"* {name}: {meaning}".strip() for name, meaning in rows)


# --- the command: docs/cli.md ---


# Objects that several commands print have a list of their own, to which those of the commands refer.
CLI_PAGE = ROOT / "docs" / "cli.md"


def keys_of(payload: str) -> dict[str, Any]:
    """Return name -> annotation of the keys of an object that a command prints.

    Args:
        payload: Its class, named below ``gpusonde.cli``, or in full.
    """
    module, _, name = (payload if payload.startswith("gpusonde.") else f"gpusonde.cli.{payload}").rpartition(".")
    return _keys_in(getattr(importlib.import_module(module), name))


def _keys_in(kind: Any) -> dict[str, Any]:
    """Return the annotated keys of a payload class or of a dataclass, of which the docstring tells; of others none."""
    from gpusonde.cli.output import JsonKey
    from gpusonde.documents import NOT_A_KEY, attributes_of

    if is_typeddict(kind):
        return get_type_hints(kind, include_extras=True)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return {}
    told, hints = attributes_of(kind), get_type_hints(kind)
    return {
        name: Annotated[hints[name], JsonKey(_of_key(name, told.get(name, "")))]
        for name, annotated in get_type_hints(kind, include_extras=True).items()
        if NOT_A_KEY not in getattr(annotated, "__metadata__", ())
    }


def _of_key(name: str, text: str) -> str:
    """Return the first sentence of what a docstring says of a field, if it is more than its name, as a list has it."""
    # That what is not known is null is told once, at the head of the page.
    text = re.sub(r"; None (?!for all)[^;]*", "", text.partition(". ")[0].rstrip("."))
    text = re.sub(r"\bNone\b", "null", text).replace("``", "`")
    text = text if text[:2].isupper() else text[:1].lower() + text[1:]
    return "" if text in (f"the {name}", f"how many {name}") else text


def _title(payload: str) -> str:
    words = re.findall("[A-Z][a-z0-9]*", payload.rpartition(".")[2].removesuffix("Payload"))
    return " ".join(words).capitalize()


def _link(payload: str) -> str:
    return f"[{_title(payload).lower()}](#{_title(payload).lower().replace(' ', '-')})"


def _lines(keys: Mapping[str, Any], objects: Mapping[str, Mapping[str, Any]], above: str = "") -> list[tuple[str, str]]:
    """Return (keys, meaning) of an object and of those in it, by their paths; what needs no words has none."""
    lines: list[tuple[str, str]] = []
    for known, own in sorted(objects.items(), key=lambda item: -len(item[1])):
        # An object that is this one and more: a link instead of its keys.
        if own.items() <= keys.items():
            lines.append((f"the keys of {_link(known)}", f"in `{above[:-1]}`" if above else ""))
            keys = {name: value for name, value in keys.items() if name not in own}
    for name, annotated in keys.items():
        kind, key, path = annotated, None, above + name
        if get_origin(annotated) is Annotated:
            kind, key = annotated.__origin__, annotated.__metadata__[0]
        while get_origin(kind) is not dict and (choices := [each for each in get_args(kind) if each is not type(None)]):
            path += "[]" * (get_origin(kind) in (list, tuple))
            kind = choices[0]
        inner = keys_of(key.holds) if key and key.holds else _keys_in(kind)
        known = next((each for each, own in objects.items() if own == inner), "")
        meaning = (f"{key.meaning} ({key.unit})" if key.unit else key.meaning) if key else ""
        if inner and not known:
            # Where nothing is said of an object, its keys say it.
            lines += [(f"`{path}`", meaning)] * bool(meaning) + _lines(inner, objects, f"{path}.")
        else:
            lines.append((f"`{path}`" + (f" ({_link(known)})" if known else ""), meaning))
    return lines


@functools.cache
def _listed() -> dict[str, str]:
    """Return the objects on the page of the command, in its order, with the heading that each stands under."""
    found: dict[str, str] = {}
    heading = ""
    for line in CLI_PAGE.read_text(encoding="utf-8").splitlines():
        heading = line.lstrip("# ") if re.match("##+ ", line) else heading
        for generator, *words in parts(f"{line}\n<!--end-->"):
            if generator == "object":
                found[words[0]] = _title(words[0])
            elif generator == "keys":
                found[words[0]] = heading
    return found


@functools.cache
def _drawn(payload: str) -> list[tuple[str, str]]:
    titles = {name: title for name, title in _listed().items() if title == _title(name)}
    return _lines(keys_of(payload), {name: keys_of(name) for name in titles if name != payload})


def _split(path: str) -> tuple[str, str]:
    """Return the path of an object and the name of a key of it."""
    above, _, name = path.strip("`").rpartition(".")
    return above, name


@functools.cache
def _told_keys() -> tuple[dict[str, str], list[tuple[str, str, dict[str, str]]]]:
    """Return which object tells first what keys mean that mean one thing on the whole page; and all objects."""
    meanings: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for payload in _listed():
        for path, meaning in _drawn(payload):
            above, name = _split(path)
            meanings.setdefault(name, set()).add(meaning)
            first.setdefault(name, payload)
            if meaning:
                groups.setdefault((payload, above), {})[name] = meaning
    once = {name: first[name] for name, told in meanings.items() if len(told) == 1 and told != {""}}
    return once, [(*place, told) for place, told in groups.items()]


def _as_before(payload: str, above: str) -> tuple[set[str], str]:
    """Return the keys of an object that an object before it has alike, and where that is."""
    groups = _told_keys()[1]
    (at,) = (index for index, group in enumerate(groups) if group[:2] == (payload, above))
    for other, path, told in groups[:at]:
        alike = {name for name, meaning in groups[at][2].items() if told.get(name) == meaning}
        if sum(len(told[name].split()) for name in alike) > 12:
            heading = _listed()[other]
            anchor = re.sub("[^a-z0-9 ]", "", heading.lower()).replace(" ", "-")
            link = f"[{heading.strip('`').removeprefix('gpusonde ').lower()}](#{anchor})"
            return alike, f"as `{path}`" if other == payload else f"as in {f'`{path}` of ' if path else ''}{link}"
    return set(), ""


def keys(payload: str) -> str:
    """List the keys of an object that a command prints under ``--json``; what was told above is only named."""
    lines: dict[str, list[str]] = {"": []}
    once = _told_keys()[0]
    for path, meaning in _drawn(payload):
        above, name = _split(path)
        alike, where = _as_before(payload, above) if meaning else (set(), "")
        said = where if name in alike else "" if once.get(name, payload) != payload else meaning
        lines.setdefault(said, []).append(path)
    plain = lines.pop("")
    drawn = [_together(plain)] * bool(plain) + [f"{_together(paths)}: {meaning}" for meaning, paths in lines.items()]
    return "\\\n".join(drawn)


def _together(paths: Iterable[str]) -> str:
    """Draw paths one behind the other, keys of one object in braces."""
    drawn: list[str] = []
    objects: dict[str, list[str]] = {}
    for path in paths:
        above, name = _split(path)
        if above and path.endswith("`"):
            objects.setdefault(above, []).append(name)
        else:
            drawn.append(path)
    drawn += [
        f"`{above}.{names[0] if len(names) == 1 else '{' + ','.join(names) + '}'}`" for above, names in objects.items()
    ]
    return ", ".join(drawn)


def draw_object(payload: str) -> str:
    """Draw an object that several commands print, under a heading that the others link to."""
    return f"### {_title(payload)}\n\n{keys(payload)}"


# --- configurations: deploy/config/*.toml ---

_CONFIGURATION_HEAD = """# Configuration of the gpusonde {daemon}. Every option is shown with its default.
#
# Precedence: flags, then environment ({prefix}<SECTION>_<OPTION>), then this file, then the defaults.
# Unknown keys are errors; durations and sizes carry their unit. In brackets: what is allowed; live, if a reload
# (SIGHUP) takes a change over, else it needs a restart. Check a change with
#   gpusonde {daemon} --config FILE --check-config

"""


def _configuration(daemon: str) -> type[Configuration]:
    from gpusonde.agent import AgentConfig
    from gpusonde.collector import CollectorConfig

    return {"agent": AgentConfig, "collector": CollectorConfig}[daemon]


def configuration_file(daemon: str) -> str:
    """Write the file that ships with a daemon: every key with its default."""
    config = _configuration(daemon)
    return _CONFIGURATION_HEAD.format(daemon=daemon, prefix=config.environment_prefix) + config().to_toml()


# --- documents: docs/cli.md ---


def document_keys(name: str) -> str:
    """List a document's keys, one list per kind of object in it."""
    from gpusonde.optimizer.documents import job, problem, references, watching

    documents: Mapping[str, Mapping[str, list[type]]] = {
        "problem": {
            "": [problem.ProblemKeys],
            "job": [job.JobKeys, references.FileReferences],
            "spot": [references.SpotKeys],
        },
        "report": {"": [watching.ReportKeys]},
    }
    drawn: dict[type, dict[str, str]] = {}
    heads: dict[type, str] = {}
    for path, kinds in documents[name].items():
        _gather_keys(path, kinds, set(documents[name]), drawn, heads)
    return "\n\n".join(_list_keys(heads, drawn, kind) for kind in drawn)


def _gather_keys(
    path: str, kinds: list[type], apart: set[str], drawn: dict[type, dict[str, str]], heads: dict[type, str]
) -> None:
    """Gather the keys of an object and of those in it; ``apart`` are paths that are listed by themselves."""
    from gpusonde.documents import describe, keys_of

    if kinds[0] in drawn:
        return
    heads[kinds[0]] = path
    drawn[kinds[0]] = {
        f"`{key}{'[]' * words.startswith('a list')}`": _told(_meaning(meaning), _holds(words), _default(default))
        for kind in kinds
        for key, words, default, meaning in describe(kind)
    }
    for kind in kinds:
        for key in keys_of(kind):
            below = f"{path}.{key.name}" if path else key.name
            if key.kind is not None and below not in apart:
                _gather_keys(below, [key.kind], apart, drawn, heads)


def _list_keys(heads: Mapping[type, str], drawn: Mapping[type, Mapping[str, str]], kind: type) -> str:
    """List an object's keys; those that an object before it has alike are only named."""
    rows = dict(drawn[kind])
    lines = [f"**`{heads[kind]}`**\n"] if heads[kind] else []
    for other in list(drawn)[: list(drawn).index(kind)]:
        alike = [name for name, text in rows.items() if drawn[other].get(name) == text]
        if len(alike) > 2:
            lines.append(f"* as in `{heads[other]}`: {', '.join(alike)}")
            rows = {name: text for name, text in rows.items() if name not in alike}
    return "\n".join([*lines, *(listing([row]) for row in rows.items())])


def _told(meaning: str, *more: str) -> str:
    """Return a meaning with what more is to be said of a key in brackets."""
    said = ", ".join(filter(None, more))
    return f"{meaning} ({said})" if said else meaning


def _default(words: str) -> str:
    """Return what stands in a list of keys for a default."""
    return words if words == "required" or not words else f"default `{words}`"


def _holds(words: str) -> str:
    """Return the choices of a key that has some; else nothing, as its name tells the type and the error its range."""
    return words if " or " in words and words != "true or false" and not re.match(r"an? ", words) else ""


def _meaning(text: str) -> str:
    """Return what a docstring says of a field as a list says it of a key."""
    return re.sub(r"\bNone\b", "left out", text).replace("``", "`").rstrip(".")


# --- the catalogue: docs/catalog.md ---


def gpus_from_memory() -> str:
    """List the GPUs of which no figure was looked up."""
    from gpusonde.catalog import load_gpus

    return ", ".join(spec.name for spec in load_gpus().specs if "fp32_tflops" in spec.from_memory())


# --- kinds of files: docs/trace_files.md ---


def parquet_schema() -> str:
    """Tell the columns of a Parquet file with every metric, those of one unit in a row."""
    from gpusonde.telemetry import METRIC_BY_NAME, METRICS
    from gpusonde.telemetry.writers import parquet_schema as schema_of

    rows: dict[tuple[str, str], list[str]] = {}
    for field in schema_of([metric.name for metric in METRICS]):
        unit = METRIC_BY_NAME[field.name].unit.value if field.name in METRIC_BY_NAME else ""
        told = {"time_s": "seconds after the GPU's `origin_unix_s`"}.get(field.name, unit.replace("_", " "))
        rows.setdefault((str(field.type), told), []).append(f"`{field.name}`")
    return table(("column", "type", "unit"), ((", ".join(names), *about) for about, names in rows.items()))


def trace_formats() -> str:
    """Draw the kinds of trace files that are told by content."""
    from gpusonde.telemetry.readers.read import formats

    return table(("kind", "written by", "times", "GPUs"), formats())


# Files that are written as a whole, with what writes them.
FILES: Mapping[str, Callable[[], str]] = {
    "deploy/config/agent.toml": lambda: configuration_file("agent"),
    "deploy/config/collector.toml": lambda: configuration_file("collector"),
}

GENERATORS: Mapping[str, Callable[..., str]] = {
    "gpus-from-memory": gpus_from_memory,
    "trace-formats": trace_formats,
    "parquet-schema": parquet_schema,
    "document-keys": document_keys,
    "keys": keys,
    "object": draw_object,
}


# --- the site: make site ---


def lay_out_site(folder: Path) -> None:
    """Copy the pages and their pictures as they lie, so that their links hold, and write the reference beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    kept = [*pages(), *ROOT.glob("*.md"), *ROOT.glob("predictor/**/*CARD.md"), *ROOT.glob("docs/**/*.png")]
    for path in {*kept, ROOT / "LICENSE"}:
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            copy.write_text(_with_wider_lists(path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(path, copy)
    reference = folder / "reference"
    reference.mkdir()
    for daemon in ("agent", "collector"):
        text = f"# Configuration of the {daemon}\n\n```toml\n{configuration_file(daemon)}```\n"
        (reference / f"{daemon}.md").write_text(text, encoding="utf-8")
    (reference / "http.md").write_text(http_reference(), encoding="utf-8")


def _with_wider_lists(text: str) -> str:
    """Return a page with what is inside of lists indented by four for each two or three: Python-Markdown wants that."""
    lines, closing, more = [], "", 0
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip(" "))
        fence = re.match(r" *(```+)", line)
        if closing:
            closing = "" if fence and line.strip() == closing else closing
        else:
            is_item = re.match(r" +(?:[*-]|\d+\.) ", line)
            more = -(-depth // 3) * 4 - depth if is_item or depth in (2, 3) else 0
            closing = fence[1] if fence else ""
            if re.match(r"\d+\. ", line) and lines and lines[-1].startswith("    "):
                # After a second paragraph the next number would be taken for text.
                lines.append("")
        # It has no such breaks of lines either.
        text_of_line = line if closing else re.sub(r"\\$", "  ", line)
        lines.append(" " * (more if line else 0) + text_of_line)
    return "\n".join(lines) + "\n"


def http_reference() -> str:
    """Write the page of what HTTP offers, from the OpenAPI document."""
    from gpusonde.collector.web.routes import openapi

    document = openapi()
    lines = ["# HTTP paths", "How they are asked: [HTTP and the page](../docs/web.md). Each is a method of gRPC, too."]
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            lines.append(f"## `{verb.upper()} {path}`\n\n{operation['summary']}")
            given = [(each["name"], each["schema"]) for each in operation.get("parameters", [])]
            if body := operation.get("requestBody"):
                lines.append(f"Body: {_schema_link(body['content']['application/json']['schema'])}")
            lines.append(listing((f"`{name}`", _schema_link(schema)) for name, schema in given))
            media = operation["responses"]["200"]["content"]
            lines += [f"Answer: {_schema_link(each['schema']) if each else kind}" for kind, each in media.items()]
    lines.append("## Messages")
    for name, schema in document["components"]["schemas"].items():
        fields = schema["properties"].items()
        lines += [f"### {name}", listing((f"`{field}`", _schema_link(kind)) for field, kind in fields)]
    return "\n\n".join(filter(None, lines)) + "\n"


def _schema_link(schema: Mapping[str, Any]) -> str:
    """Return what a schema says of a field, in words."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower().replace('.', '')})"
    if "items" in schema:
        return f"list of {_schema_link(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map to {_schema_link(schema['additionalProperties'])}"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema["type"]
    words = kind if isinstance(kind, str) else " or ".join(kind)
    return f"{words} ({schema['format']})" if "format" in schema else words


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or with ``--check`` name those that are out of date; returns the exit code."""
    if arguments[:1] == ["--site"]:
        lay_out_site(Path(arguments[1]))
        return 0
    stale = []
    checks = "--check" in arguments
    for path in [*pages(), *(ROOT / name for name in FILES)]:
        before = path.read_text(encoding="utf-8")
        after = expected(path, before)
        if after != before:
            stale.append(path.relative_to(ROOT))
            if not checks:
                path.write_text(after, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'is not what the code says; run make docs' if checks else 'written'}")
    return 1 if checks and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
