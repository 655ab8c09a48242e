/*
 * sparse: touches one page in `stride` of a large private mapping, as a heap
 * does that many threads have left holes in. How much memory that takes
 * depends on what the kernel maps beside what is touched.
 */
#include "common.h"

#include <sys/mman.h>

#define PAGE (4 * KIB)

int main(int argc, char **argv)
{
    uint64_t size = 64 * MIB, stride = 100;
    const struct option_spec options[] = {
        {"size", OPTION_SIZE, &size, PAGE, TIB, "size of the mapping"},
        {"stride", OPTION_COUNT, &stride, 1, UINT64_MAX, "pages from one touch to the next"},
    };
    PARSE_OPTIONS(argc, argv, "Touches of distant pages.", options);
    uint64_t pages = size / PAGE;
    char *memory =
        mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("cannot map %" PRIu64 " pages: %s", pages, strerror(errno));
    uint64_t touched = 0, sum = 0;
    for (uint64_t page = 0; page < pages; page += stride, touched++)
        *(uint64_t *)(memory + page * PAGE) = page + 1;
    for (uint64_t page = 0; page < pages; page += stride)
        sum += *(uint64_t *)(memory + page * PAGE);
    uint64_t expected = touched + stride * (touched * (touched - 1) / 2);
    printf("sparse: %" PRIu64 " of %" PRIu64 " pages\n", touched, pages);
    if (sum != expected)
        fail("validation failed: the pages add up to %" PRIu64 ", not %" PRIu64, sum, expected);
    printf("validation: passed, sum %" PRIu64 "\n", sum);
    return finish();
}
