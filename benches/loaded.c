/*
 * loaded: a thread follows pointers while others read memory in sequence, as Intel's Memory
 * Latency Checker does to measure the latency of loaded memory. All threads meet after each round,
 * so that streams are under way while pointers are followed, however fast either is.
 *
 *     loaded STREAMS LINES STEPS ROUNDS
 *
 * Each of STREAMS threads reads LINES cache lines a round; the first thread follows STEPS pointers.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define LINE 64
#define CHASED (128UL << 20)
#define STREAMED (64UL << 20)

static unsigned long lines, steps, rounds;
static pthread_barrier_t barrier;

static void *memory(size_t bytes) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (start == MAP_FAILED) {
        perror("loaded: mmap");
        exit(1);
    }
    madvise(start, bytes, MADV_HUGEPAGE);
    for (size_t at = 0; at < bytes; at += 4096) ((volatile char *)start)[at] = 1;
    return start;
}

static void *stream(void *unused) {
    const uint64_t *data = memory(STREAMED);
    uint64_t words = STREAMED / sizeof(*data), at = 0, sum = 0;

    (void)unused;
    pthread_barrier_wait(&barrier);
    for (unsigned long round = 0; round < rounds; round++) {
        pthread_barrier_wait(&barrier);
        for (unsigned long line = 0; line < lines; line++) {
            for (int word = 0; word < LINE / 8; word++) sum += data[at + word];
            at = (at + LINE / 8) % words;
        }
        pthread_barrier_wait(&barrier);
    }
    return (void *)sum;
}

/* Returns a line of a cycle through all lines, in an order without strides (Sattolo's). */
static void **chain(void) {
    char *chased = memory(CHASED);
    uint32_t count = CHASED / LINE, *order = malloc(count * sizeof(*order));
    uint64_t random = 1;

    if (order == NULL) exit(1);
    for (uint32_t i = 0; i < count; i++) order[i] = i;
    for (uint32_t i = count - 1; i > 0; i--) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        uint32_t j = (random >> 33) % i, one = order[i];

        order[i] = order[j];
        order[j] = one;
    }
    for (uint32_t i = 0; i < count; i++)
        *(void **)(chased + (uint64_t)order[i] * LINE) =
            chased + (uint64_t)order[(i + 1) % count] * LINE;
    free(order);
    return (void **)chased;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: loaded STREAMS LINES STEPS ROUNDS\n");
        return 2;
    }
    unsigned long streams = strtoul(argv[1], NULL, 10);

    lines = strtoul(argv[2], NULL, 10);
    steps = strtoul(argv[3], NULL, 10);
    rounds = strtoul(argv[4], NULL, 10);
    void **at = chain();

    pthread_barrier_init(&barrier, NULL, streams + 1);
    for (unsigned long i = 0; i < streams; i++) {
        pthread_t thread;

        if (pthread_create(&thread, NULL, stream, NULL) != 0) return 1;
    }
    pthread_barrier_wait(&barrier);
    for (unsigned long round = 0; round < rounds; round++) {
        pthread_barrier_wait(&barrier);
        for (unsigned long step = 0; step < steps; step++) at = *at;
        pthread_barrier_wait(&barrier);
    }
    printf("%d\n", at != NULL);
    return 0;
}
