/*
 * reads: one byte in each 2 MB of untouched memory. argv:
 * blocks, "write" to write it.
 */
#include "../common.h"

#include <sys/mman.h>

#define BLOCK (2UL << 20)

int main(int argc, char **argv)
{
    size_t blocks = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    int writes = argc > 2 && strcmp(argv[2], "write") == 0;
    volatile char *memory = mmap(NULL, blocks * BLOCK, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    madvise((void *)memory, blocks * BLOCK, MADV_HUGEPAGE);
    int sum = 0;
    for (int round = 0; round < 10; round++)
        for (size_t at = 100000; at < blocks * BLOCK; at += BLOCK)
            if (writes)
                memory[at] = 1;
            else
                sum += memory[at];
    return sum;
}
