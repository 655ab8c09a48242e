"""Run the experiment guard-vm and write its table into docs/guard.md.

    benches/guard.py [FOLDER] [--full]

With a folder, the figures of a run that is there already are written (`contigua experiment run
guard-vm -o FOLDER`).
"""

from __future__ import annotations

from typing import Any

from documents import rows, write


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the table and the notes as Markdown."""
    (table,) = figures["tables"]
    demand = figures["inputs"]
    return [
        *rows(table),
        "",
        f"{demand['pinned_mib']} MiB of programs' memory are pinned in pages of 4 KB. "
        f"{demand['resident_mib']} MiB of kernel memory stay, among {demand['churn_mib']} MiB that "
        f"go; then {demand['burst_mib']} MiB come at {demand['rate_mib']} MiB a second, and go.",
        # What single guests printed is on the experiment's page only.
        *(note for note in figures["notes"] if not note.startswith("Linux ")),
    ]


if __name__ == "__main__":
    write("guard-vm", "guard.md", __doc__, lines)
