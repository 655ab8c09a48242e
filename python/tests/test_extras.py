"""Does what `pip install contigua` installs suffice for runs, and is what is missing named?"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires

import pytest

from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Modules that come with a distribution of another name, which an extra has.
WITH = {
    "cycler": "matplotlib",
    "scipy": "scikit-learn",
    "sklearn": "scikit-learn",
    "threadpoolctl": "scikit-learn",
    "vl_convert": "vl-convert-python",
}
#: Refuses modules, as if they were not installed, and runs the command.
COMMAND = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refused())
from contigua.cli import main
main()
"""


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def base():
    """Return the distributions that the package needs without extras."""
    found, left = set(), [name_of(one) for one in PROJECT["dependencies"]]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += [name_of(each) for each in requires(one) or () if "extra ==" not in each]
    return found


@pytest.fixture(scope="module")
def without_extras():
    needed = base() | {"contigua"}
    refused = {
        module
        for module, distributions in packages_distributions().items()
        if not {one.lower().replace("_", "-") for one in distributions} & needed
        and not module.startswith("contigua")
    }
    assert {"matplotlib", "pyarrow", "pandas", "numpy", "distributed", "vl_convert"} <= refused

    def run(*arguments, cwd=None):
        command = [sys.executable, "-c", COMMAND.format(refused=refused), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd)

    return run


def test_runs_tables_and_ageing_need_no_extra(without_extras, tmp_path):
    file = tmp_path / "report.json"
    ran = without_extras("run", "--detail", "translation", "--json", file, "--", "/bin/true")
    assert ran.returncode == 0, ran.stderr
    assert "page faults" in ran.stderr
    assert [one["config"]["design_name"] for one in json.loads(file.read_text())] == [
        "linux-4k",
        "linux-thp",
    ]
    for form in ("csv", "markdown"):
        run = ("run", "--detail", "translation", "--format", form, "--", "/bin/true")
        ran = without_extras(*run)
        assert ran.returncode == 0 and "linux-thp" in ran.stdout, ran.stderr
    ran = without_extras("age", "--memory", "256M", "--hours", "0.01", "--json", file)
    assert ran.returncode == 0 and file.exists(), ran.stderr
    for command in (("designs", "list"), ("experiment", "list"), ("sweep", "--help")):
        ran = without_extras(*command)
        assert ran.returncode == 0 and ran.stdout, ran.stderr


def test_a_missing_extra_is_one_line_with_the_command_that_installs_it(without_extras, tmp_path):
    file = tmp_path / "report.json"
    run = ("run", "--detail", "translation", "--json", file, "--", "/bin/true")
    assert without_extras(*run).returncode == 0
    for command, extra in (
        (("report", file, "-o", tmp_path / "page.html"), "reports"),
        (("query", file, "select 1"), "sweeps"),
        (("age", "--memory", "256M", "--hours", "0.01", "--png", tmp_path / "a.png"), "reports"),
    ):
        ran = without_extras(*command, cwd=tmp_path)
        assert ran.returncode == 1, ran.stderr
        (line,) = ran.stderr.strip().splitlines()
        assert re.fullmatch(
            rf"contigua: \w+ is not installed: pip install 'contigua\[{extra}\]'", line
        ), line


def imported(tree, extras=(), types=False):
    """Yield each absolute import with the extras that it says it needs."""
    for node in ast.iter_child_nodes(tree):
        inner, only_types = extras, types
        if isinstance(node, ast.With):
            calls = [one.context_expr for one in node.items]
            inner += tuple(
                call.args[0].value for call in calls if ast.unparse(call).startswith("needs(")
            )
        elif isinstance(node, ast.If):
            only_types = types or "TYPE_CHECKING" in ast.unparse(node.test)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], extras, types
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0], extras, types
        yield from imported(node, inner, only_types)


def test_each_import_of_an_extra_names_it():
    have = {
        extra: {name_of(one) for one in needed}
        for extra, needed in PROJECT["optional-dependencies"].items()
    }
    always = {name_of(one).replace("-", "_") for one in PROJECT["dependencies"]}
    always |= {"contigua", "contigua_experiments", *sys.stdlib_module_names}
    checked = 0
    for package in ("contigua", "contigua_experiments"):
        for file in sorted((ROOT / "python" / package).rglob("*.py")):
            for module, extras, types in imported(ast.parse(file.read_text())):
                if types or module in always:
                    continue
                # It comes with pytest's runs of virtual machines, not with the package.
                if module == "contigua_vm":
                    continue
                checked += 1
                distribution = WITH.get(module, module).replace("_", "-")
                assert any(distribution in have[one] for one in extras), f"{file}: {module}"
    assert checked > 30
