#!/usr/bin/env python3
"""Build Debian's kernels with Contiguitas and without it, and boot the changed ones.

    vm-tests/build_kernel.py [SERIES...]

What is built stays in the cache, where tests and experiments find it.
"""

from __future__ import annotations

import sys

from contigua_vm import Guest, Initramfs, VmError
from contigua_vm.building import built_kernel
from contigua_vm.confinement import borders


def say(text: str) -> None:
    """Tell what happens."""
    print(text, flush=True)


def main() -> int:
    """Run the command."""
    try:
        for series in sys.argv[1:] or ["6.1"]:
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
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
