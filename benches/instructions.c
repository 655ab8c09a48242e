/*
 * instructions: what branches and operations cost, for benches/instructions.py.
 *
 *     instructions jump|call BIT ROUNDS
 *     instructions blocks OFFSET ROUNDS
 *     instructions random SHARE ROUNDS
 *     instructions reads KIB ROUNDS
 *     instructions NAME 0 ROUNDS
 *
 * Jumps and calls go to code whose address differs in bit BIT, and back. Blocks of 11 bytes begin OFFSET
 * bytes behind the beginning of a line of 64 and end in a jump to the next one. `random` branches on random bits,
 * of which SHARE in 256 are set. `reads` adds up random words of KIB kilobytes, a power of two. Every other NAME is a
 * loop of `loops`. Prints nanoseconds of the fastest round for one of its steps, and the share of rounds that took half
 * as long again.
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

/* A loop of sixteen blocks: two additions and a jump. */
static void (*chain(long offset))(long) {
    enum { BLOCKS = 16, APART = 128 };
    unsigned char *begin = map(BASE), *at = begin;
    at = put(at, "\x48\x89\xf9\xe9", 4); /* mov %rdi, %rcx; jmp to the first block */
    int there = (int)(APART + offset - 8);
    at = put(at, (const char *)&there, 4);
    for (int block = 1; block <= BLOCKS; block++) {
        at = begin + block * APART + offset;
        at = put(at, "\x83\xc0\x01\x83\xc2\x01", 6); /* add $1, %eax; add $1, %edx */
        int last = block == BLOCKS, size = last ? 0 : 5;
        there = APART - 6 - size;
        if (!last) {
            at = put(at, "\xe9", 1);
            put(at, (const char *)&there, 4);
        }
    }
    at = put(at, "\x48\x83\xe9\x10\x0f\x8f", 6); /* sub $16, %rcx; jg to the first block */
    there = (int)(begin + APART + offset - (at + 4));
    at = put(at, (const char *)&there, 4);
    put(at, "\xc3", 1);
    return (void (*)(long))(uintptr_t)begin;
}

static void branch(long from) {
    long i = from, sum = 0;
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
}

/* A loop of four steps a turn, so that its `dec` and branch hardly count. */
#define LOOP(name, code)                                                            \
    static void name(long steps) {                                                  \
        steps /= 4;                                                                 \
        __asm__ volatile("1:" code code code code "dec %0\njnz 1b"                  \
                         : "+r"(steps)                                              \
                         :                                                          \
                         : "rax", "rbx", "rcx", "rdx", "r8", "xmm0", "xmm1", "cc"); \
    }

LOOP(shifts, "shr $3,%%rbx\nshr $3,%%rcx\nshr $3,%%rdx\nshr $3,%%r8\n")
LOOP(selects, "sete %%bl\nsete %%cl\nsete %%dl\nsete %%r8b\n")
LOOP(both, "shr $3,%%rbx\nsete %%cl\nshr $3,%%rdx\nsete %%r8b\n")
LOOP(transfers, "movq %%xmm0,%%rbx\nmovq %%xmm0,%%rcx\nmovq %%xmm0,%%rdx\nmovq %%xmm0,%%r8\n")
LOOP(compares,
     "comisd %%xmm0,%%xmm1\ncomisd %%xmm0,%%xmm1\ncomisd %%xmm0,%%xmm1\ncomisd %%xmm0,%%xmm1\n")
LOOP(there, "movq %%rax,%%xmm1\nmovq %%xmm1,%%rax\n")
LOOP(converts, "cvtsi2sd %%rax,%%xmm1\ncvttsd2si %%xmm1,%%rax\n")
LOOP(apart,
     "pxor %%xmm0,%%xmm0\ncvtsi2sd %%rax,%%xmm0\npxor %%xmm1,%%xmm1\ncvtsi2sd %%rax,%%xmm1\n")
LOOP(wide, "add $1,%%rax\nadd $1,%%rbx\nadd $1,%%rcx\nadd $1,%%rdx\n"
           "add $2,%%rax\nadd $2,%%rbx\nadd $2,%%rcx\nadd $2,%%rdx\n")
LOOP(copies, "add $1,%%rax\nmov %%rax,%%rbx\nmov %%rbx,%%rcx\nmov %%rcx,%%rax\n")
LOOP(multiplies, "imul %%r8,%%rax\nimul %%r8,%%rbx\nimul %%r8,%%rcx\nimul %%r8,%%rdx\n"
                 "shr $3,%%rax\nshr $3,%%rbx\nshr $3,%%rcx\nshr $3,%%rdx\n")

/* A bit of an edge of workloads/bfs.c: two random numbers, each compared with a probability. */
static double draws(long steps) {
    uint64_t state = 1;
    long rows = 0, columns = 0;
    for (long i = 0; i < steps; i++) {
        double parts[2];
        for (int part = 0; part < 2; part++) {
            uint64_t x = state += UINT64_C(0x9e3779b97f4a7c15);
            x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
            x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
            parts[part] = (double)((x ^ x >> 31) >> 11) * 0x1p-53;
        }
        int lower = parts[0] > 0.76;
        rows += (long)lower << (i & 31);
        columns += (long)(parts[1] > (lower ? 0.79 : 0.75)) << (i & 31);
    }
    return (double)(rows + columns);
}

static void draw(long steps) { __asm__ volatile("" : : "x"(draws(steps))); }

static uint32_t numbers[1 << 20];
static uint32_t mask;

static void reads(long steps) {
    uint32_t sum = 0;
    for (long i = 0; i < steps; i++)
        sum += numbers[(uint32_t)((uint64_t)i * UINT64_C(0x9e3779b97f4a7c15) >> 33) & mask];
    __asm__ volatile("" : : "r"(sum));
}

static const struct {
    const char *name;
    void (*run)(long);
} loops[] = {
    {"shifts", shifts},       {"selects", selects},       {"both", both},
    {"transfers", transfers}, {"compares", compares},     {"there", there},
    {"converts", converts},   {"apart", apart},           {"wide", wide},
    {"copies", copies},       {"multiplies", multiplies}, {"draw", draw},
};

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "usage: instructions NAME NUMBER ROUNDS\n");
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
    } else if (strcmp(words[1], "call") == 0 || strcmp(words[1], "jump") == 0) {
        go = loop(BASE ^ UINT64_C(1) << number, strcmp(words[1], "call") == 0);
    } else if (strcmp(words[1], "blocks") == 0) {
        go = chain(number);
    } else if (strcmp(words[1], "reads") == 0) {
        memset(numbers, 1, sizeof numbers);
        mask = (uint32_t)(number << 8) - 1;
        go = reads;
    }
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++)
        if (strcmp(words[1], loops[i].name) == 0) go = loops[i].run;
    if (!random && go == NULL) {
        fprintf(stderr, "instructions: no loop is called '%s'\n", words[1]);
        return 2;
    }
    double best = 1e18, *all = malloc((size_t)rounds * sizeof *all);
    if (!all) return 1;
    for (long round = 0; round < rounds; round++) {
        double began = now();
        if (random)
            branch(round % 40 * STEPS);
        else
            go(STEPS);
        double took = now() - began;
        all[round] = took;
        best = took < best ? took : best;
    }
    long slow = 0;
    for (long round = 0; round < rounds; round++) slow += all[round] > best * 1.5;
    printf("%.4f %.4f\n", best / STEPS, (double)slow / (double)rounds);
    free(all);
    return 0;
}
