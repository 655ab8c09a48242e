/* What all test programs share. A test says what failed and where, and exits with 1. */
#ifndef COMMON_H
#define COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                       \
        }                                                                   \
    } while (0)

static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Write a pattern that depends on the seed, and see whether it is still there. */
static inline void stamp(void *memory, size_t size, uint64_t seed) {
    unsigned char *bytes = memory;
    for (size_t i = 0; i < size; i += 61) bytes[i] = (unsigned char)(seed * 31 + i);
    if (size) bytes[size - 1] = (unsigned char)(seed * 7);
}
static inline int stamped(const void *memory, size_t size, uint64_t seed) {
    const unsigned char *bytes = memory;
    for (size_t i = 0; i < size; i += 61)
        if (i != size - 1 && bytes[i] != (unsigned char)(seed * 31 + i)) return 0;
    return !size || bytes[size - 1] == (unsigned char)(seed * 7);
}
/* Keeps the compiler from reasoning about memory. */
static inline void *opaque(void *memory) {
    __asm__ volatile("" : "+r"(memory) : : "memory");
    return memory;
}
/* Where the page lies in which this process shows its figures, or 0. */
static inline uintptr_t figures_page(void) {
    char line[512];
    uintptr_t begin = 0;
    unsigned long address;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:contigua-malloc") && sscanf(line, "%lx-", &address) == 1)
            begin = address;
    fclose(maps);
    return begin;
}

#endif
