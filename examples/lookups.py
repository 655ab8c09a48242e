"""Random look-ups in a table of 1 GiB, as in embedding tables or the vectors of a graph.

Importing NumPy and filling the table take 0.7 billion instructions. Then each pass reads the same
million elements, 1.5 billion instructions in all.
"""

import os
import sys

# A thread for each processor has nothing to do here.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# NumPy asks for huge pages (madvise); most programs do not. Linux then compacts at every fault.
os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")

import numpy as np

PASSES = int(sys.argv[1]) if len(sys.argv) > 1 else 64

table = np.ones(1 << 27)
batches = np.random.default_rng(1).integers(0, table.size, (256, 4096))
total = 0.0
for _ in range(PASSES):
    for batch in batches:
        total += table[batch].sum()
print(f"{PASSES * batches.size:,} look-ups in {table.nbytes >> 20} MiB: {total:,.0f}")
