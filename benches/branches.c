/*
 * branches: what taken and mispredicted branches cost, for benches/branches.py.
 *
 *     branches jump|call BITS ROUNDS
 *     branches random SHARE ROUNDS
 *
 * The first two go to code whose address differs in bit BITS, and back. The last one branches on random
 * bits, of which SHARE in 256 are set. Prints nanoseconds of the fastest round for one of its steps.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define STEPS 100000L
#define BASE UINT64_C(0x200000000000)

static unsigned char bits[STEPS * 40];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static unsigned char *map(uint64_t address) {
    void *memory = mmap((void *)address, 8192, PROT_READ | PROT_WRITE | PROT_EXEC,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != (void *)address) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

static void *put(unsigned char *at, const char *code, size_t size) {
    return (unsigned char *)memcpy(at, code, size) + size;
}

/* A loop whose every step goes to `there` and back, by calls or by jumps through registers. */
static void (*loop(uint64_t there, int calls))(long) {
    unsigned char *begin = map(BASE), *at = begin, *other = map(there) + 0x340;
    at = put(at, "\x48\x89\xf9", 3); /* mov %rdi, %rcx */
    at = put(at, "\x49\xb8", 2);     /* movabs $other, %r8 */
    memcpy(at, &other, 8);
    at = put(at + 8, "\x49\xb9", 2); /* movabs $back, %r9 */
    unsigned char *back = begin + 80;
    memcpy(at, &back, 8);
    memset(at + 8, 0x90, (size_t)(begin + 64 - (at + 8)));
    at = begin + 64;
    at = put(at, calls ? "\x41\xff\xd0" : "\x41\xff\xe0", 3); /* call or jmp *%r8 */
    memset(at, 0x90, (size_t)(back - at));
    at = put(back, "\x48\xff\xc9", 3); /* dec %rcx */
    at = put(at, "\x75\xeb", 2);       /* jnz begin + 64 */
    put(at, "\xc3", 1);
    put(other, calls ? "\xc3" : "\x41\xff\xe1", calls ? 1 : 3); /* ret, or jmp *%r9 */
    return (void (*)(long))(uintptr_t)begin;
}

static void branch(long from) {
    long i = from, sum = 0;
#if defined __x86_64__
    __asm__ volatile("1: movzbl (%2,%0),%%eax\n"
                     "test %%eax,%%eax\n"
                     "jz 2f\n"
                     "add $3,%1\n"
                     "2: inc %0\n"
                     "cmp %3,%0\n"
                     "jne 1b"
                     : "+r"(i), "+r"(sum)
                     : "r"(bits), "r"(from + STEPS)
                     : "rax", "cc");
#else
#error "for x86-64"
#endif
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "usage: branches jump|call|random BITS ROUNDS\n");
        return 2;
    }
    long number = atol(words[2]), rounds = atol(words[3]);
    int random = strcmp(words[1], "random") == 0;
    void (*go)(long) = NULL;
    if (random) {
        uint64_t x = UINT64_C(88172645463325252);
        for (size_t i = 0; i < sizeof bits; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            bits[i] = (x >> 20 & 255) < (uint64_t)number;
        }
    } else {
        go = loop(BASE ^ UINT64_C(1) << number, strcmp(words[1], "call") == 0);
    }
    double best = 1e18;
    for (long round = 0; round < rounds; round++) {
        double began = now();
        if (random)
            branch(round % 40 * STEPS);
        else
            go(STEPS);
        double took = now() - began;
        best = took < best ? took : best;
    }
    printf("%.4f\n", best / STEPS);
    return 0;
}
