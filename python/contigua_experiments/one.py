"""Run one experiment: ``python -m contigua_experiments.one NAME SCALE FOLDER PARENT JOBS BREAK``.

JOBS and BREAK are 0 for as many as there are processors, and for an experiment that is not broken;
otherwise BREAK counts those of its file.

The exit status and the last line on standard output tell :mod:`contigua_experiments.everything`
how it ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import cast

from contigua._engine import EngineError
from contigua.entry import interrupt
from contigua.errors import ContiguaError, ImpossibleError
from contigua.files import write_whole
from contigua.presets import READ, REPLACED
from contigua.progress import FractionLine
from contigua_experiments import Context, Definition, Scale, find, run_experiment
from contigua_experiments.breaks import Break
from contigua_experiments.fingerprint import unfinished

#: ``prctl``'s name for the signal that a process gets when its parent ends (``linux/prctl.h``).
PR_SET_PDEATHSIG = 1
#: Exit status where this computer lacks something.
IMPOSSIBLE = 3
#: The presets that an experiment has read: ``scripts/checks`` sees that its result depends on them.
PRESETS = "presets.json"


def main(name: str, scale: str, folder: str, parent: str, jobs: str, broken: str) -> int:
    """Run an experiment for a parent process and return the exit status."""
    # Whoever ends us ends the programs under study, too: an interrupt cleans up behind itself.
    signal.signal(signal.SIGTERM, interrupt)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        return 130
    try:
        definition, size, own = find(name), cast(Scale, scale), Path(folder)
        planted = definition.breaks[int(broken) - 1] if int(broken) else None
        with FractionLine(name) as line, unfinished(definition, size, own, planted) as kept:
            context = Context(own, int(jobs) or None, line, kept)
            run_experiment(taken_apart(definition, planted), size, context)
            write_whole(context.folder / PRESETS, json.dumps(sorted(READ)) + "\n")
    except ImpossibleError as error:
        print(_line(error))
        return IMPOSSIBLE
    except (EngineError, ContiguaError) as error:
        print(_line(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # A fault in the experiment itself: where it is helps whoever mends it.
        traceback.print_exc()
        print(_line(error) or type(error).__name__)
        return 1
    return 0


def taken_apart(definition: Definition, broken: Break | None) -> Definition:
    """Return an experiment with a break, whose preset this process reads from now on."""
    if broken is None:
        return definition
    REPLACED.update(broken.replaced())
    inputs = {scale: broken.inputs(values) for scale, values in definition.inputs.items()}
    return replace(definition, inputs=inputs)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
