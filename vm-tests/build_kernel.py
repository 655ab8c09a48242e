#!/usr/bin/env python3
"""Build Debian's kernels with Contiguitas and without it, and boot the changed ones.

    vm-tests/build_kernel.py [--if-possible] [SERIES...]

What is built stays in the cache, where tests and experiments find it. With --if-possible it ends
with 3 where the host lacks something, or the source cannot be fetched.
"""

from __future__ import annotations

import argparse
import sys

from contigua_vm import Guest, Initramfs, Unavailable, VmError, missing_requirement
from contigua_vm.building import built_kernel
from contigua_vm.confinement import borders


def say(text: str) -> None:
    """Tell what happens."""
    print(text, flush=True)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("series", nargs="*", default=["6.1"], help="such as 6.1 (the default)")
    parser.add_argument("--if-possible", action="store_true", help="end with 3 where it is not")
    arguments = parser.parse_args()
    try:
        missing = missing_requirement()
        if missing is not None:
            raise Unavailable(missing)
        for series in arguments.series:
            plain = built_kernel(series, is_changed=False, progress=say)
            changed = built_kernel(series, is_changed=True, progress=say)
            say(f"Linux {plain.release} as it comes: {plain.image}")
            say(f"Linux {changed.release} with Contiguitas: {changed.image}")
            with Guest(changed, Initramfs(), memory_mib=1024, options="contiguitas=on") as guest:
                say(f"booted in {guest.boot_seconds:.0f} s")
                for zone in borders(guest):
                    say(
                        f"  zone {zone['zone']}: {zone['unmovable_mib']} MiB unmovable, "
                        f"{zone['movable_mib']} MiB movable"
                    )
                guest.assert_well()
    except VmError as error:
        print(f"build_kernel: {error}", file=sys.stderr)
        return 3 if arguments.if_possible and isinstance(error, Unavailable) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
