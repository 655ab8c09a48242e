/*
 * splits: parts of huge pages are taken away in three ways, so that the kernel
 * splits them: 16 pages by mprotect, 8 by munmap, 4 by madvise.
 */
#include "../common.h"

#include <sys/mman.h>

#define HUGE_PAGE (2 * MIB)
#define PAGES 32

int main(void)
{
    unsigned char *memory = mmap(NULL, (PAGES + 1) * HUGE_PAGE, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED);
    unsigned char *at = memory + (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
    memset(at, 1, PAGES * HUGE_PAGE);
    for (int page = 0; page < 16; page++)
        require(mprotect(at + page * HUGE_PAGE, 4096, PROT_NONE) == 0);
    for (int page = 16; page < 24; page++)
        require(munmap(at + page * HUGE_PAGE, 4096) == 0);
    for (int page = 24; page < 28; page++)
        require(madvise(at + page * HUGE_PAGE, 4096, MADV_DONTNEED) == 0);
    unsigned long sum = 0;
    for (int round = 0; round < 8; round++)
        for (size_t byte = 4096; byte < PAGES * HUGE_PAGE; byte += 4160)
            sum += byte % HUGE_PAGE < 4096 ? 0 : at[byte];
    require(sum > 0);
    return 0;
}
