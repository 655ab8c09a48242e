/* What the benchmarks share: random numbers, threads, a way to make memory used, and what is resident. */
#ifndef BENCH_H
#define BENCH_H
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Sizes as programs have them: mostly small, few large. */
static inline size_t random_size(uint64_t *state) {
    uint64_t random = next_random(state);
    unsigned log = 4 + __builtin_ctzll((random >> 40) | 1 << 13);
    return 8 + (random & (((uint64_t)1 << log) - 1));
}

static inline void *use(void *memory, size_t size) {
    if (!memory) abort();
    ((volatile char *)memory)[0] = 1;
    ((volatile char *)memory)[size - 1] = 1;
    return memory;
}

/* Writes what is resident in MB. Without the C library's files, which allocate. */
static inline void resident(void) {
    char text[128] = {0};
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0) abort();
    close(file);
    long pages = strtol(strchr(text, ' '), NULL, 10);
    int length = snprintf(text, sizeof text, " %ld", pages * sysconf(_SC_PAGESIZE) >> 20);
    if (write(1, text, length) != length) abort();
}

static inline void run_threads(int count, void *(*function)(void *)) {
    pthread_t threads[256];
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, function, (void *)(uintptr_t)(i + 1))) abort();
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}
#endif
