/*
 * next_page: reads the lines of pages in order, where the next page is the next one in memory or any
 * other. Only a prefetcher that goes on in the next page tells the two apart.
 *
 *     next_page MEGABYTES huge|small order|any ROUNDS
 *
 * Prints nanoseconds of CPU time for a page, of the fastest round.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096UL
#define HUGE_PAGE (2UL << 20)

static double now(void) {
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    size_t bytes = strtoul(arguments[1], NULL, 10) << 20, pages = bytes / PAGE;
    int advice = strcmp(arguments[2], "huge") == 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
    unsigned long rounds = strtoul(arguments[4], NULL, 10);
    char *all =
        mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *order = malloc(pages * sizeof(*order));
    double best = 1e18;
    uint64_t sum = 0, random = 1;

    if (all == MAP_FAILED || order == NULL) return 1;
    char *memory = (char *)(((uintptr_t)all + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
    madvise(memory, bytes, advice);
    memset(memory, 1, bytes);
    for (size_t i = 0; i < pages; i++) order[i] = (uint32_t)i;
    for (size_t i = pages - 1; strcmp(arguments[3], "any") == 0 && i > 0; i--) {
        random = random * 6364136223846793005UL + 1442695040888963407UL;
        size_t other = (random >> 33) % (i + 1);
        uint32_t page = order[i];
        order[i] = order[other];
        order[other] = page;
    }
    for (unsigned long round = 0; round < rounds; round++) {
        double began = now();
        for (size_t i = 0; i < pages; i++) {
            const volatile uint64_t *page = (uint64_t *)(memory + order[i] * PAGE);
            for (size_t word = 0; word < PAGE / 8; word += 8) sum += page[word];
        }
        double taken = (now() - began) / (double)pages;
        best = taken < best ? taken : best;
    }
    printf("%.1f %d\n", best, sum == 0);
    return 0;
}
