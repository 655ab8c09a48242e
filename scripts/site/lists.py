"""The reference's lists of what comes with Contigua: presets, experiments, the Python interface."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import commands
import tomlkit
from schemas import ROOT, Reference, Source, files_of_variants

import contigua
from contigua.presets import Collection, designs, machines, profiles
from contigua_experiments import EXPERIMENTS

DATA = "python/contigua/data"

INTRODUCTIONS = {
    "design": (
        "A design is what is compared: how the operating system places and maps memory, and how "
        "the hardware translates. `--designs` takes names from the list below, or paths of TOML "
        "files of your own; `contigua designs show NAME --resolved` prints every value in force."
    ),
    "machine": (
        "A machine is the hardware of a simulated server. `--machine` takes a name from the list "
        "below, or the path of a TOML file of your own; `contigua machines show NAME` prints one "
        "to start from, and `contigua machines measure -o FILE` writes one of the computer that it "
        "runs on. Where each value comes from stands beside it, or above it."
    ),
    "profile": (
        "A profile is what a server is used for: the demand for memory of its tenants and of its "
        "kernel. `--profile` takes a name from the list below, or the path of a TOML file of your "
        "own. [Ageing a server](../design/server-ageing.md) explains the model and says "
        "what was fitted to what."
    ),
}

EDITORS = """Editors that know JSON schemas complete and check keys as you type. For taplo (in VS
Code the extension *Even Better TOML*), write the schema once and name it on a file's first line:

<!-- run -->
```console
$ contigua {kind}s schema > {kind}.schema.json
```

```toml
#:schema ./{kind}.schema.json
```
"""


def presets_page(collection: Collection) -> str:
    """Return the page about a collection: its files, then every key."""
    kind = collection.kind
    parts = [
        f"# {kind.capitalize()}s",
        INTRODUCTIONS[kind],
        f"## {kind.capitalize()}s that come with Contigua",
    ]
    for preset in collection:
        body = preset.text.rstrip().replace("\n", "\n    ")
        parts += [
            f"### {preset.name} {{#{kind}-{preset.name}}}",
            preset.description + ".",
            f'??? note "{preset.name}.toml"\n\n    ```toml\n    {body}\n    ```',
        ]
    parts += ["## Keys", EDITORS.format(kind=kind), _reference(collection).markdown()]
    return "\n\n".join(parts) + "\n"


def _reference(collection: Collection) -> Reference:
    schema = collection.schema()
    if collection is machines:
        sources = [Source(one.name, tomlkit.parse(one.text)) for one in collection]
        return Reference(schema, sources)
    if collection is designs:
        schemes = files_of_variants("crates/translation/src/schemes/mod.rs")
        policies = files_of_variants("crates/frames/src/policies/mod.rs")
        essays = {f"translation.{name}": file for name, file in schemes.items()}
        essays |= {f"placement.{name}": file for name, file in policies.items()}
        essays["placement.contiguitas.resize"] = "crates/frames/src/controller.rs"
        return Reference(schema, essays=essays)
    return Reference(schema)


def experiments_page() -> str:
    """Return the page that lists every experiment and the published values."""
    verdicts = (
        "[Reproduction](../reproduction.md) has the verdicts of full runs, and "
        "[another page](../reproduction-quick.md) the values of quick ones."
    )
    parts = [
        "# Experiments",
        "Each computes published figures again and sets ours beside the paper's: "
        "`contigua experiment run NAME`. A *fitted* figure was used to choose inputs and proves "
        "nothing; the others are predicted.",
        verdicts if (ROOT / "docs" / "reproduction.md").exists() else "",
    ]
    for name in EXPERIMENTS:
        file = resources.files("contigua_experiments") / f"{name.replace('-', '_')}.toml"
        parts.append(_experiment(name, tomllib.loads(file.read_text())))
    return "\n\n".join(parts) + "\n"


def _experiment(name: str, values: dict[str, Any]) -> str:
    facts = [("source", "source"), ("needs", "needs"), ("fitting", "fitted")]
    lines = [f"- {label}: {values[key]}" for key, label in facts if values.get(key)]
    for scale in ("quick", "full"):
        if duration := values.get(scale, {}).get("duration"):
            lines.append(f"- `--{scale}` takes {duration}")
    text = f"## {name}\n\n{values.get('title', '')}.\n\n" + "\n".join(lines)
    figures = values.get("figures", [])
    if figures:
        text += "\n\n| figure | the paper's | from | |\n|---|--:|---|---|\n"
        text += "\n".join(_figure(figure) for figure in figures)
    return text


def _figure(figure: dict[str, Any]) -> str:
    sign = {"at_least": "≥ ", "at_most": "≤ "}.get(figure.get("relation", "near"), "")
    paper = f"{sign}{figure.get('paper', '')} {figure.get('unit', '')}".strip()
    fitted = "fitted" if figure.get("fitted") else "predicted"
    return f"| {figure.get('label', '')} | {paper} | {figure.get('source', '')} | {fitted} |"


def python_page() -> str:
    """Return the page of the Python interface: directives that mkdocstrings fills in."""
    parts = [
        "# Python",
        "What `import contigua` offers. Everything is typed; times are in seconds and sizes are "
        'text such as `"4G"` unless a name says otherwise.',
    ]
    names = [name for name in contigua.__all__ if not name.startswith("__")]
    parts += [f"::: contigua.{name}" for name in sorted(names, key=str.lower)]
    parts += ["::: contigua.plot", "::: contigua.explore"]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return every generated page by its path under docs/."""
    made = {f"reference/{c.kind}s.md": presets_page(c) for c in (designs, machines, profiles)}
    made["reference/experiments.md"] = experiments_page()
    made["reference/python.md"] = python_page()
    made["reference/command-line.md"] = commands.page()
    for collection in (designs, machines, profiles):
        schema = json.dumps(collection.schema(), indent=2) + "\n"
        made[f"reference/{collection.kind}.schema.json"] = schema
    return made


def repository_page(path: Path) -> str:
    """Return a page that shows a file of the repository."""
    if path.suffix == ".ipynb":
        return _notebook(json.loads(path.read_text()))
    languages = {".rs": "rust", ".py": "python", ".toml": "toml", ".sh": "sh"}
    language = languages.get(path.suffix, "text")
    return f"# {path.relative_to(ROOT)}\n\n````{language}\n{path.read_text().rstrip()}\n````\n"


def _notebook(notebook: dict[str, Any]) -> str:
    """Return a notebook as a page: its text, and its code, which is committed without outputs."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"
