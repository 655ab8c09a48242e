/*
 * refill: all but one page in 33 of 32 MB is given back, then the program
 * computes with those that stayed: huge pages are split, and khugepaged may
 * fill them again.
 */
#include "../common.h"

#include <sys/mman.h>

#define PAGE 4096
#define BYTES (32 * MIB)
#define STAYS 33
#define ROUNDS 400

int main(void)
{
    unsigned char *memory =
        mmap(NULL, BYTES + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED);
    unsigned char *at = memory + (2 * MIB - (uintptr_t)memory % (2 * MIB)) % (2 * MIB);
    memset(at, 1, BYTES);
    for (size_t page = 0; page < BYTES / PAGE; page += STAYS)
        for (size_t next = page + 1; next < page + STAYS && next < BYTES / PAGE; next++)
            require(madvise(at + next * PAGE, PAGE, MADV_DONTNEED) == 0);
    unsigned long sum = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t page = 0; page < BYTES / PAGE; page += STAYS)
            sum += at[page * PAGE + (size_t)round * 8]++;
    require(sum > 0);
    return 0;
}
