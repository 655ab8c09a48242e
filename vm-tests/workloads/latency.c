/* How long allocations take while other programs do what they do.
 *
 *   latency MICROSECONDS
 *
 * asks every so often for one page of anonymous memory, which is movable, and for one page table,
 * which is not, and gives both back. On SIGTERM it prints, for each, how often, and the median, the
 * 99th and 99.9th percentile and the maximum of the nanoseconds.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#define PAGE 4096UL
#define TABLE (2UL << 20) /* what one page table maps */
#define MOST (1u << 20)

static uint32_t movable[MOST], unmovable[MOST];
static volatile sig_atomic_t is_over;

static void stop(int signal) {
    (void)signal;
    is_over = 1;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static int compare(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static void print(const char *name, uint32_t *took, unsigned count) {
    if (!count)
        return;
    qsort(took, count, sizeof *took, compare);
    printf("%s %u %u %u %u %u\n", name, count, took[count / 2],
           took[(uint64_t)count * 99 / 100], took[(uint64_t)count * 999 / 1000], took[count - 1]);
}

int main(int argc, char **argv) {
    if (argc != 2 || atoi(argv[1]) <= 0) {
        fprintf(stderr, "usage: latency MICROSECONDS\n");
        return 2;
    }
    long interval = atol(argv[1]);
    struct timespec pause = {interval / 1000000, interval % 1000000 * 1000};
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    signal(SIGTERM, stop);
    /* One whole table's worth of addresses lies somewhere in it. */
    char *room = mmap(NULL, 2 * TABLE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return 1;
    char *table = (char *)(((uintptr_t)room + TABLE - 1) & ~(TABLE - 1));
    munmap(table, TABLE);
    unsigned count = 0;
    while (!is_over && count < MOST) {
        /* Of reading, nothing is allocated but a table, with the zero page in it. */
        char *area = mmap(table, TABLE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (area == MAP_FAILED)
            return 1;
        uint64_t start = now();
        (void)*(volatile char *)area;
        uint64_t middle = now();
        *(volatile char *)(area + PAGE) = 1;
        uint64_t end = now();
        unmovable[count] = middle - start;
        movable[count++] = end - middle;
        munmap(area, TABLE);
        nanosleep(&pause, NULL);
    }
    print("unmovable", unmovable, count);
    print("movable", movable, count);
    return 0;
}
