/*
 * random: reads of random cache lines of one large buffer, and of nothing
 * else. Some 4 KiB pages of each 2 MiB can be left out, so that memory with
 * holes that nobody touches can be studied: a fraction F of 512 pages,
 * k = round(512 F) and at least one, either the first k (clustered) or those
 * with numbers floor(512 i / k) (dispersed).
 *
 * Before the reads, each page that is used gets its number's hash as its
 * first word. Validation adds up what was read and compares with the same
 * sum computed without the buffer.
 */
#include "common.h"

#define HUGE_PAGE (2 * MIB)
#define PAGE (4 * KIB)
#define LINE 64
#define SUB_PAGES (HUGE_PAGE / PAGE)
#define LINES (PAGE / LINE)

/* Fills `used` with the numbers of the pages of 2 MiB that are not left out. */
static uint64_t choose_pages(double skip, bool clustered, uint16_t used[SUB_PAGES])
{
    bool left_out[SUB_PAGES] = {false};
    uint64_t holes = skip > 0 ? (uint64_t)lround(skip * SUB_PAGES) : 0;
    if (skip > 0 && holes == 0)
        holes = 1;
    for (uint64_t i = 0; i < holes; i++)
        left_out[clustered ? i : i * SUB_PAGES / holes] = true;
    uint64_t count = 0;
    for (uint64_t page = 0; page < SUB_PAGES; page++)
        if (!left_out[page])
            used[count++] = (uint16_t)page;
    return count;
}

int main(int argc, char **argv)
{
    uint64_t size = 64 * MIB, reads = 1000000, seed = 1;
    double skip = 0.0;
    bool clustered = false;
    const struct option_spec options[] = {
        {"size", OPTION_SIZE, &size, HUGE_PAGE, TIB, "buffer size, in whole 2 MiB"},
        {"reads", OPTION_COUNT, &reads, 0, UINT64_MAX, "reads"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "which lines"},
        {"skip", OPTION_REAL, &skip, 0, 1, "fraction of 4 KiB pages to leave out"},
        {"clustered", OPTION_FLAG, &clustered, 0, 0, "leave neighbors out, not distant pages"},
    };
    PARSE_OPTIONS(argc, argv, "Random reads of a large buffer.", options);
    if (size % HUGE_PAGE != 0)
        usage_error("--size: %" PRIu64 " is not a multiple of 2MiB", size);
    uint16_t used[SUB_PAGES];
    uint64_t count = choose_pages(skip, clustered, used);
    if (count == 0)
        usage_error("--skip: nothing is left to read");

    void *buffer;
    int error = posix_memalign(&buffer, HUGE_PAGE, size);
    if (error != 0)
        fail("cannot allocate %" PRIu64 " bytes: %s", size, strerror(error));
    const volatile char *bytes = buffer;
    uint64_t pages = size / HUGE_PAGE * count;
    for (uint64_t page = 0; page < pages; page++) {
        uint64_t at = page / count * HUGE_PAGE + used[page % count] * PAGE;
        *(uint64_t *)((char *)buffer + at) = mix64(page);
    }

    uint64_t state = seed, sum = 0, expected = 0;
    for (uint64_t i = 0; i < reads; i++) {
        uint64_t page = random_below(&state, pages);
        uint64_t line = random_bits(&state) % LINES;
        uint64_t at = page / count * HUGE_PAGE + used[page % count] * PAGE + line * LINE;
        sum += *(const volatile uint64_t *)(bytes + at);
        expected += line == 0 ? mix64(page) : 0;
    }
    printf("random: %" PRIu64 " pages of %" PRIu64 ", %" PRIu64 " reads\n", pages, size / PAGE,
           reads);
    if (sum != expected)
        fail("validation failed: the reads add up to 0x%016" PRIx64 ", not 0x%016" PRIx64, sum,
             expected);
    printf("validation: passed, sum 0x%016" PRIx64 "\n", sum);
    free(buffer);
    return finish();
}
