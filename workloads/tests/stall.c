/*
 * stall: a heap of 64 MB that asks for huge pages grows, so that where no
 * block is free each fault compacts memory before the program goes on.
 */
#include "../common.h"

#include <sys/mman.h>

#define BYTES (64 * MIB)
#define READS 200000

int main(void)
{
    unsigned char *memory =
        mmap(NULL, BYTES + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED);
    unsigned char *at = memory + (2 * MIB - (uintptr_t)memory % (2 * MIB)) % (2 * MIB);
    require(madvise(at, BYTES, MADV_HUGEPAGE) == 0);
    for (size_t byte = 0; byte < BYTES; byte += 4096)
        at[byte] = 1;
    uint64_t state = 1;
    unsigned long sum = 0;
    for (int read = 0; read < READS; read++)
        sum += at[random_below(&state, BYTES)];
    require(sum > 0);
    return 0;
}
