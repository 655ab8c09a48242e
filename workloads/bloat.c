/*
 * bloat: fills a mapping with objects, gives random ones back (MADV_DONTNEED)
 * as a store does that deletes most of its keys, and then reads what is left,
 * so that kernels that make huge pages in the background fill the holes again.
 * In the end it grows by a second mapping, page by page, with reads between.
 *
 *  - Objects are whole pages; each word that is written is the page's number,
 *    and the pages that were read must add up to what was written there.
 *  - With --late the mapping has small pages when it is filled and is advised
 *    to have huge ones afterwards, so that only the background makes them.
 *  - Reads are of one object in the last part of the mapping (--hot), or of
 *    any.
 */
#include "common.h"

#include <sys/mman.h>

#define PAGE (4 * KIB)

struct reads {
    char *memory;
    const uint32_t *kept; /* first pages of the objects that are left */
    uint64_t first, count, pages;
    uint64_t random, sum, expected;
};

static void read_some(struct reads *reads, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t object = reads->first + random_below(&reads->random, reads->count);
        uint64_t page = reads->kept[object] + random_below(&reads->random, reads->pages);
        reads->sum += *(volatile uint64_t *)(reads->memory + page * PAGE);
        reads->expected += page + 1;
    }
}

static char *map(uint64_t bytes)
{
    /* On a boundary of 2 MiB, wherever the kernel puts it. */
    char *memory =
        mmap(NULL, bytes + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("cannot map %" PRIu64 " bytes: %s", bytes, strerror(errno));
    return memory + (2 * MIB - (uintptr_t)memory % (2 * MIB)) % (2 * MIB);
}

int main(int argc, char **argv)
{
    uint64_t size = 64 * MIB, object = 8 * KIB, kept = 30, reads = 1000000, hot = 100;
    uint64_t grow = 0, between = 50, seed = 1;
    bool late = false;
    const struct option_spec options[] = {
        {"size", OPTION_SIZE, &size, 2 * MIB, TIB, "size of the mapping"},
        {"object", OPTION_SIZE, &object, PAGE, 2 * MIB, "size of an object, whole pages"},
        {"kept", OPTION_COUNT, &kept, 1, 100, "percentage of objects that stay"},
        {"reads", OPTION_COUNT, &reads, 0, UINT64_MAX, "reads of what is left"},
        {"hot", OPTION_COUNT, &hot, 1, 100, "percentage of the mapping, its end, that is read"},
        {"late", OPTION_FLAG, &late, 0, 0, "huge pages only once it is filled"},
        {"grow", OPTION_SIZE, &grow, 0, TIB, "size of the second mapping"},
        {"between", OPTION_COUNT, &between, 0, UINT64_MAX, "reads for each of its pages"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "seed of what stays and is read"},
    };
    PARSE_OPTIONS(argc, argv, "Objects that leave holes, and growth.", options);
    uint64_t pages = object / PAGE, objects = size / object;
    if (object % PAGE != 0)
        usage_error("--object: %" PRIu64 " is not a multiple of 4KiB", object);
    uint32_t *left = allocate(objects, sizeof *left);
    char *memory = map(size);
    if (late && madvise(memory, size, MADV_NOHUGEPAGE) != 0)
        fail("madvise: %s", strerror(errno));
    for (uint64_t page = 0; page < objects * pages; page++)
        *(uint64_t *)(memory + page * PAGE) = page + 1;
    if (late && madvise(memory, size, MADV_HUGEPAGE) != 0)
        fail("madvise: %s", strerror(errno));
    struct reads state = {.memory = memory, .kept = left, .pages = pages, .random = seed};
    uint64_t count = 0;
    for (uint64_t i = 0; i < objects; i++) {
        bool stays = random_below(&state.random, 100) < kept || i == objects - 1;
        if (stays)
            left[count++] = (uint32_t)(i * pages);
        else if (madvise(memory + i * object, object, MADV_DONTNEED) != 0)
            fail("madvise: %s", strerror(errno));
    }
    uint64_t cold = objects * pages * (100 - hot) / 100;
    while (state.first < count - 1 && left[state.first] < cold)
        state.first++;
    state.count = count - state.first;
    read_some(&state, reads);
    char *more = grow > 0 ? map(grow) : NULL;
    for (uint64_t page = 0; page < grow / PAGE; page++) {
        *(uint64_t *)(more + page * PAGE) = page;
        read_some(&state, between);
    }
    uint64_t grown = 0;
    for (uint64_t page = 0; page < grow / PAGE; page++)
        grown += *(uint64_t *)(more + page * PAGE) == page;
    printf("bloat: %" PRIu64 " of %" PRIu64 " objects left, %" PRIu64 " pages more\n", count,
           objects, grown);
    if (state.sum != state.expected || grown != grow / PAGE)
        fail("validation failed: the pages add up to %" PRIu64 ", not %" PRIu64, state.sum,
             state.expected);
    printf("validation: passed, sum %" PRIu64 "\n", state.sum);
    return finish();
}
