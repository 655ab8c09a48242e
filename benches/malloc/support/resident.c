/* Resident memory after most of it was freed.
 *
 * resident PATTERN ACTIVITY MEGABYTES SECONDS...
 *
 * Allocates, frees what the pattern says and then, for the last of SECONDS, does nothing (idle) or 20,000
 * requests of up to 1 KB a second (busy). Writes what is resident in MB before the frees, after them,
 * and after each of SECONDS. */
#include "../bench.h"
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RING = 1000, LARGE = 1 << 20, PAGE = 8192 };
static uint64_t random_state = 12345;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static size_t small(void) { return 100 + next_random(&random_state) % 901; }

/* From 16 bytes to 1 MB, as many of each magnitude as another in bytes. */
static size_t any(void) {
    unsigned log = 4;
    while (log < 19 && next_random(&random_state) % 3) log++;
    return ((size_t)1 << log) + (next_random(&random_state) & (((size_t)1 << log) - 1));
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    const char *pattern = arguments[1];
    int busy = !strcmp(arguments[2], "busy");
    size_t total = strtoul(arguments[3], NULL, 10) << 20, most = total / 64;
    int is_large = !strcmp(pattern, "large"), is_mixed = !strcmp(pattern, "mixed");
    int groups = !strcmp(pattern, "groups"), one = !strcmp(pattern, "pages");
    int randomly = !strcmp(pattern, "random"), any_size = !strcmp(pattern, "sizes");
    char **all = mmap(NULL, most * sizeof *all, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return 1;
    size_t objects = 0, kept = 0;
    for (size_t bytes = 0; bytes < total && objects < most; objects++) {
        size_t size = is_large || (is_mixed && bytes / LARGE % 2) ? LARGE
                      : any_size                                  ? any()
                                                                  : small();
        all[objects] = memset(use(malloc(size), size), 1, size);
        bytes += size;
    }
    resident();
    uintptr_t page = 0;
    for (size_t i = 0; i < objects; i++) {
        int keep = groups                 ? i / 64 % 8 == 0
                   : randomly || any_size ? next_random(&random_state) % 10 == 0
                   : one                  ? (uintptr_t)all[i] / PAGE != page
                                          : 0;
        page = (uintptr_t)all[i] / PAGE;
        if (keep)
            kept += *(unsigned char *)all[i];
        else
            free(all[i]);
    }
    munmap(all, most * sizeof *all);
    double begin = now();
    resident();
    static char *ring[RING];
    struct timespec pause = {0, 1000000};
    for (int argument = 4, request = 0; argument < count; argument++) {
        double end = begin + strtod(arguments[argument], NULL);
        for (double done = begin; now() < end;) {
            nanosleep(&pause, NULL);
            if (!busy) continue;
            double time = now();
            for (int i = 0; i < (time - done) * 20000; i++, request = (request + 1) % RING) {
                size_t size = 1 + next_random(&random_state) % 1024;
                free(ring[request]);
                ring[request] = use(malloc(size), size);
            }
            done = time;
        }
        resident();
    }
    return kept == 0 && (groups || randomly || any_size || one);
}
