"""The ``contigua`` command: the list of its commands, whose modules are imported when used."""

from __future__ import annotations

import sys

import click

from contigua import _engine
from contigua.commands.lazy import LazyGroup
from contigua.entry import call

#: Module and function of each command.
COMMANDS = {
    "age": "contigua.commands.age:age_command",
    "completion": "contigua.commands.shell:completion_command",
    "designs": "contigua.commands.presets:designs_commands",
    "experiment": "contigua_experiments.command:experiment_commands",
    "fleet": "contigua.commands.fleet:fleet_commands",
    "header": "contigua.commands.regions:header_command",
    "machines": "contigua.commands.presets:machines_commands",
    "profile": "contigua.commands.profile:profile_command",
    "profiles": "contigua.commands.presets:profiles_commands",
    "query": "contigua.commands.sweep:query_command",
    "record": "contigua.commands.run:record_command",
    "report": "contigua.commands.report:report_command",
    "run": "contigua.commands.run:run_command",
    "schema": "contigua.commands.schema:schema_command",
    "setup": "contigua.commands.setup:setup_commands",
    "simpoints": "contigua.commands.regions:simpoints_command",
    "sweep": "contigua.commands.sweep:sweep_command",
    "trace": "contigua.commands.trace:trace_commands",
    "validate": "contigua.commands.validate:validate_command",
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(_engine.VERSION, "-V", "--version", prog_name="contigua")
def cli() -> None:
    """Run unmodified programs on simulated servers and compare designs for contiguous memory."""


def main() -> None:
    """Run the command; every foreseeable error is one line on standard error."""
    sys.exit(call(cli))


if __name__ == "__main__":
    main()
