"""Checks that run when their inputs have changed: ``python3 scripts/checks --help``."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from datetime import date, timedelta

from affected import affected
from catalogue import GATES, CatalogueError, Check, checks, passed, write
from drawn import LIMIT, draw, repeat
from inputs import PRESETS, ROOT
from times import TARGETS, measure, measured

DRAWN = f"run again a check of at most {LIMIT} s that a commit draws, and compare its figures"


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="scripts/checks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("list", "show every check: its gate, when it passed, how long it took and what it covers"),
        ("verify", "fail if a long check's inputs have changed since it passed"),
        ("renew", "run the long checks whose inputs have changed, and record what passes"),
    ):
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("names", nargs="*", metavar="CHECK", help="checks, or groups of them")
        if name != "list":
            one.add_argument("--release", action="store_true", help="those before a release, too")
        if name == "verify":
            one.add_argument(
                "--grace",
                type=int,
                default=0,
                metavar="DAYS",
                help="do not fail for checks that passed in the last DAYS  [default: 0]",
            )
        if name == "renew":
            one.add_argument("--all", action="store_true", help="run those that are current, too")
    one = commands.add_parser("drawn", help=DRAWN, description=DRAWN)
    one.add_argument("--commit", default="HEAD", help="the commit that draws  [default: HEAD]")
    one.add_argument("--which", action="store_true", help="only say which check it is")
    one = commands.add_parser("affected", help="print what to test after the uncommitted change")
    one.add_argument("--base", default="HEAD", help="compare with this commit  [default: HEAD]")
    one.add_argument("kind", choices=["crates", "tests"])
    one = commands.add_parser("times", help="time make targets into CONTRIBUTING.md")
    one.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}")
    arguments = parser.parse_args()
    try:
        if arguments.command == "affected":
            print(" ".join(affected(arguments.base, arguments.kind)))
            return 0
        if arguments.command == "times":
            return measure(arguments.targets)
        if arguments.command == "drawn":
            check = draw(checks(), passed(), arguments.commit)
            print(f"checks: {arguments.commit} draws {check.name}", flush=True)
            return 0 if arguments.which else repeat(check)
        if arguments.command == "list":
            return _list(_chosen(arguments.names))
        gates = {"long", "release"} if arguments.names or arguments.release else {"long"}
        chosen = [one for one in _chosen(arguments.names) if one.gate in gates]
        if arguments.command == "verify":
            return _verify(chosen, arguments.grace)
        return _renew(chosen, arguments.all)
    except CatalogueError as error:
        print(f"checks: {error}", file=sys.stderr)
        return 2


def _chosen(names: list[str]) -> list[Check]:
    every = checks()
    if not names:
        return every
    found = []
    for name in names:
        some = [one for one in every if one.name == name or one.name.startswith(f"{name}/")]
        if not some:
            groups = sorted({one.name.split("/")[0] for one in every})
            raise CatalogueError(f"no check is called {name}; there are {', '.join(groups)}")
        found += some
    return found


def _state(check: Check) -> str:
    if not check.has_result():
        return "each time"
    known = passed().get(check.name)
    if known is None:
        return "never passed"
    return "current" if known["inputs"] == check.fingerprint() else "stale"


def _list(chosen: list[Check]) -> int:
    known = passed()
    for one in sorted(chosen, key=lambda one: GATES.index(one.gate)):
        last = known.get(one.name, {})
        took = last.get("seconds") if one.has_result() else measured(one.command)
        print(
            f"{one.name:38} {one.gate:8} {_state(one):12} {last.get('passed', '-'):10} "
            f"{'-' if took is None else f'{took:,.0f} s':>8}  {one.covers}"
        )
    return 0


def _verify(chosen: list[Check], grace: int) -> int:
    """Report what is stale; fail for what has not passed within ``grace`` days."""
    stale = [(one, state) for one in chosen if (state := _state(one)) != "current"]
    since = str(date.today() - timedelta(days=grace))
    overdue = 0
    for one, state in stale:
        group = one.name.split("/")[0]
        last = str(passed().get(one.name, {}).get("passed", ""))
        due = grace > 0 and last >= since
        overdue += not due
        print(
            f"{one.name} is {state}: what it depends on is not what last passed"
            f"{f', on {last}: due within {grace} days of it' if due else ''}; "
            f"run: make test-long CHECKS={group}",
            file=sys.stderr,
        )
    print(f"checks: {len(chosen) - len(stale)} current, {len(stale)} stale, {overdue} overdue")
    return 1 if overdue else 0


def _renew(chosen: list[Check], every: bool) -> int:
    due = [one for one in chosen if every or _state(one) != "current"]
    failed = []
    for command in dict.fromkeys(one.command for one in due):
        members = [one for one in due if one.command == command]
        names = ", ".join(one.name for one in members)
        group = [one for one in checks() if one.command == command]
        # Those that are not run again stay current: what they found goes into the same outputs.
        kept = {
            one.name: one.fingerprint(outputs=False)
            for one in group
            if one.name not in {member.name for member in members} and _state(one) == "current"
        }
        command = _only(command, members, group)
        print(f"== {names}: {command}", flush=True)
        before = {one.name: one.fingerprint(outputs=False) for one in members}
        start = time.monotonic()
        status = subprocess.run(shlex.split(command), cwd=ROOT, check=False).returncode
        seconds = time.monotonic() - start
        if status != 0:
            print(f"== {command} failed with status {status}: {names}", file=sys.stderr)
            failed += members
            continue
        _refresh()
        known = passed()
        for one in members:
            if one.fingerprint(outputs=False) != before[one.name]:
                print(
                    f"== {one.name}: its inputs changed while it ran; run it again", file=sys.stderr
                )
                failed.append(one)
                continue
            took, problem = _recorded(one) if one.record else (round(seconds, 1), "")
            if problem:
                print(f"== {one.name}: {problem}", file=sys.stderr)
                failed.append(one)
                continue
            known[one.name] = {
                "inputs": one.fingerprint(),
                "passed": str(date.today()),
                "seconds": took,
            }
        for one in checks():
            if kept.get(one.name) == one.fingerprint(outputs=False):
                known[one.name]["inputs"] = one.fingerprint()
        existing = {one.name for one in checks()}
        write({name: one for name, one in known.items() if name in existing})
    print(
        f"checks: {len(due) - len(failed)} passed, {len(failed)} failed, "
        f"{len(chosen) - len(due)} were current"
    )
    return 1 if failed else 0


def _recorded(check: Check) -> tuple[float, str]:
    """Return how long one of a group took by itself, and why it has not passed, if so."""
    folder = (ROOT / check.record).parent
    try:
        record = json.loads((ROOT / check.record).read_text())
        if record["status"] != "finished":
            return 0.0, f"{record['status']}: {record['reason']}"
        read = {f"{PRESETS}/{name}" for name in json.loads((folder / "presets.json").read_text())}
        if more := read - set(check.inputs):
            return 0.0, f"it reads {', '.join(sorted(more))}: add that to its file's fixed_runs"
        return float(record["seconds"]), ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return 0.0, f"{check.record} is no record of its run, remove it: {error}"


def _only(command: str, members: list[Check], group: list[Check]) -> str:
    """Return the command that runs these members of a group."""
    if len(members) == len(group):
        return command
    names = ",".join(one.name.partition("/")[2] for one in members)
    return f"{command} {members[0].name.partition('/')[0].upper()}S={names}"


def _refresh() -> None:
    """Forget contents that were read before a check ran."""
    import experiments
    import inputs

    for function in (
        inputs.meaning,
        inputs._rules,
        inputs._crate_parts,
        inputs._manifests,
        inputs.crate_closure,
        inputs._imports_module,
        inputs._values,
        experiments.read_module,
    ):
        function.cache_clear()


if __name__ == "__main__":
    sys.exit(main())
