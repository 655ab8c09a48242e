/*
 * window: how many operations of a kind a core holds between two loads that miss all caches. With more,
 * the second load waits for the first one (Wong, "Measuring reorder buffer capacity", 2013).
 *
 *     window operations|results|products|vectors|loads|stores
 *
 * Prints the number. Wants pages of 2 MB, so that walks are short.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define SIZE ((size_t)512 << 20)
/* One line of four: neighbors come with it, if prefetchers fetch pairs. */
#define NODE 256
#define NODES (SIZE / NODE)
#define STEPS 2000
#define ROUNDS 9
#define MOST 1024

static const struct kind {
    const char *name;
    unsigned char bytes, code[8];
} kinds[] = {
    {"operations", 2, {0x39, 0xc0}},                 /* cmp %eax, %eax */
    {"results", 3, {0x8d, 0x4a, 0x01}},              /* lea 1(%rdx), %ecx */
    {"products", 7, {0xb8, 1, 0, 0, 0, 0xf7, 0xe1}}, /* mov $1, %eax; mul %ecx */
    {"vectors", 5, {0x66, 0x0f, 0x70, 0xd1, 0}},     /* pshufd $0, %xmm1, %xmm2 */
    {"loads", 3, {0x39, 0x04, 0x24}},                /* cmp %eax, (%rsp) */
    {"stores", 4, {0x89, 0x4c, 0x24, 0xf8}},         /* mov %ecx, -8(%rsp) */
};

typedef void loop(void *, void *, int);

static char *memory;
static unsigned char *code;
static uint32_t *order;
static uint64_t state = 1;

static double now(void) {
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static size_t below(size_t end) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % end;
}

static unsigned char *put(unsigned char *at, const void *bytes, size_t count) {
    memcpy(at, bytes, count);
    return at + count;
}

/* A step of two chains, with `count` operations behind each load. */
static void write_loop(const struct kind *kind, int count) {
    static const unsigned char first[] = {0x48, 0x8b, 0x3f}, second[] = {0x48, 0x8b, 0x36};
    static const unsigned char start[] = {0x41, 0x89, 0xd0}, end[] = {0xc3};
    static const unsigned char again[] = {0x41, 0xff, 0xc8, 0x0f, 0x85};
    unsigned char *step = put(code, start, sizeof start), *at = step; /* mov %edx, %r8d */

    for (int chain = 0; chain < 2; chain++) {
        at = put(at, chain ? second : first, 3);
        for (int i = 0; i < count; i++) at = put(at, kind->code, kind->bytes);
    }
    at = put(at, again, sizeof again); /* dec %r8d; jne to the step */
    int32_t back = (int32_t)(step - at) - 4;
    at = put(at, &back, sizeof back);
    put(at, end, sizeof end);
}

static void *node(size_t number) { return memory + (size_t)order[number] * NODE; }

static double step(const struct kind *kind, int count) {
    double best = 1e18;

    write_loop(kind, count);
    for (int round = 0; round < ROUNDS; round++) {
        size_t start = below(NODES / 2);
        double began = now();
        ((loop *)(uintptr_t)code)(node(start), node(NODES / 2 + start), STEPS);
        double taken = (now() - began) / STEPS;
        best = taken < best ? taken : best;
    }
    return best;
}

int main(int words, char **arguments) {
    const struct kind *kind = NULL;
    for (size_t i = 0; words == 2 && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(arguments[1], kinds[i].name) == 0) kind = &kinds[i];
    if (kind == NULL) return 2;
    char *all =
        mmap(NULL, SIZE + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    code = mmap(NULL, HUGE_PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS,
                -1, 0);
    order = malloc(NODES * sizeof *order);
    if (all == MAP_FAILED || code == MAP_FAILED || order == NULL) return 1;
    memory = (char *)(((uintptr_t)all + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
    madvise(memory, SIZE, MADV_HUGEPAGE);
    for (size_t i = 0; i < NODES; i++) order[i] = (uint32_t)i;
    for (size_t i = NODES - 1; i > 0; i--) {
        size_t other = below(i + 1);
        uint32_t one = order[i];
        order[i] = order[other];
        order[other] = one;
    }
    for (size_t i = 0; i < NODES; i++) {
        size_t half = i < NODES / 2 ? 0 : NODES / 2;
        *(void **)node(i) = node(half + (i + 1 - half) % (NODES / 2));
    }
    /* Between one load's latency and two. */
    double limit = 1.5 * step(kind, 8);
    int low = 8, high = MOST;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(step(kind, middle) < limit ? &low : &high) = middle;
    }
    printf("%d\n", low);
    return 0;
}
