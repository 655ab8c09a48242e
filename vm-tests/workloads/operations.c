/* What operations cost that make the kernel allocate memory.
 *
 *   operations
 *
 * prints, for each, a line "NAME COUNT LEAST MEDIAN": the ticks of the time-stamp counter that so
 * many of them took, in the best and in the median of some repeats. An interrupt costs the repeat
 * in which it comes. The first, a loop of 100,000 instructions, says what a tick is.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#define REPEATS 31
#define PAGE 4096UL
#define AREA (1UL << 20)

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void loop(void) {
    __asm__ volatile("mov $50000, %%ecx\n1: dec %%ecx\njnz 1b" : : : "ecx", "cc");
}

static void fault(void) {
    char *area =
        mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        fail("mmap");
    for (unsigned long at = 0; at < AREA; at += PAGE)
        *(volatile char *)(area + at) = 1;
    munmap(area, AREA);
}

static void process(void) {
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (!child)
        _exit(0);
    waitpid(child, NULL, 0);
}

static void pipes(void) {
    static char full[16 * PAGE];
    int ends[2];
    if (pipe(ends))
        fail("pipe");
    if (write(ends[1], full, sizeof full) != sizeof full)
        fail("write");
    close(ends[0]);
    close(ends[1]);
}

static void file(void) {
    static char part[16 * PAGE];
    int it = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (it < 0)
        fail("/tmp");
    for (unsigned long at = 0; at < AREA; at += sizeof part)
        if (write(it, part, sizeof part) != sizeof part)
            fail("write");
    close(it);
}

static const struct {
    const char *name;
    void (*run)(void);
    unsigned count;
} operations[] = {
    {"loop", loop, 1}, {"fault", fault, 1}, {"process", process, 4},
    {"pipe", pipes, 4},   {"file", file, 1},
};

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

int main(void) {
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    for (unsigned i = 0; i < sizeof operations / sizeof *operations; i++) {
        uint64_t took[REPEATS];
        for (int warm = 0; warm < 5; warm++)
            operations[i].run();
        for (unsigned repeat = 0; repeat < REPEATS; repeat++) {
            uint64_t start = __rdtsc();
            for (unsigned j = 0; j < operations[i].count; j++)
                operations[i].run();
            took[repeat] = __rdtsc() - start;
        }
        qsort(took, REPEATS, sizeof *took, compare);
        printf("%s %u %lu %lu\n", operations[i].name, operations[i].count, took[0],
               took[REPEATS / 2]);
    }
    return 0;
}
