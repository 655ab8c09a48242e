/*
 * rounds: threads that add to random words of one shared table, in rounds of so many additions.
 *
 * Threads meet at a barrier after each round: none is farther ahead than a round, however they are
 * scheduled, and each enters the kernel.
 *
 * Each addition waits for the one before it and for some divisions: nothing overlaps, so a delayed
 * access delays its thread, and much time passes in few instructions. (The highest bit of a word,
 * on which the next place depends, is 0: places are the same whatever other threads add.) Additions
 * are atomic, so the words' sum is exact.
 */
#define _GNU_SOURCE
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

enum { PAGE = 4096 };

static pthread_barrier_t barrier;

struct share {
    pthread_t handle;
    _Atomic uint64_t *table;
    uint64_t words, rounds, additions, divisions, state;
};

static void *add(void *argument)
{
    struct share *share = argument;
    uint64_t words = share->words, word = 0;
    pthread_barrier_wait(&barrier);
    for (uint64_t round = 0; round < share->rounds; round++) {
        for (uint64_t i = 0; i < share->additions; i++) {
            uint64_t place = random_bits(&share->state) ^ word >> 63;
#pragma GCC unroll 8
            for (uint64_t j = 0; j < share->divisions; j++)
                place = UINT64_MAX - place / words;
            word = atomic_fetch_add_explicit(&share->table[mix64(place) % words], 1,
                                             memory_order_relaxed);
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    uint64_t size = 64 * KIB, rounds = 100, additions = 1000, divisions = 0, seed = 1, threads = 1;
    const struct option_spec options[] = {
        {"size", OPTION_SIZE, &size, 16, TIB, "table size"},
        {"rounds", OPTION_COUNT, &rounds, 0, UINT32_MAX, "rounds of each thread"},
        {"additions", OPTION_COUNT, &additions, 0, UINT32_MAX, "additions in a round"},
        {"divisions", OPTION_COUNT, &divisions, 0, UINT32_MAX, "divisions before an addition"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "seed of the places"},
        {"threads", OPTION_COUNT, &threads, 1, 1024, "threads"},
    };
    PARSE_OPTIONS(argc, argv, "Additions to a shared table, with barriers.", options);

    uint64_t words = size / sizeof(uint64_t), sum = 0;
    _Atomic uint64_t *table = NULL;
    int error = posix_memalign((void **)&table, PAGE, words * sizeof *table);
    if (error != 0)
        fail("cannot allocate %" PRIu64 " bytes: %s", size, strerror(error));
    for (uint64_t i = 0; i < words; i++)
        atomic_init(&table[i], 0);
    error = pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    if (error != 0)
        fail("cannot make a barrier: %s", strerror(error));
    struct share *shares = allocate(threads, sizeof *shares);
    for (uint64_t t = 0; t < threads; t++) {
        shares[t] = (struct share){
            .table = table,
            .words = words,
            .rounds = rounds,
            .additions = additions,
            .divisions = divisions,
            .state = mix64(seed + t),
        };
        error = pthread_create(&shares[t].handle, NULL, add, &shares[t]);
        if (error != 0)
            fail("cannot start thread %" PRIu64 ": %s", t, strerror(error));
    }
    for (uint64_t t = 0; t < threads; t++)
        pthread_join(shares[t].handle, NULL);
    for (uint64_t i = 0; i < words; i++)
        sum += atomic_load_explicit(&table[i], memory_order_relaxed);
    free(shares);
    free((void *)table);
    if (sum != threads * rounds * additions)
        fail("validation failed: the words' sum is %" PRIu64 ", not %" PRIu64, sum,
             threads * rounds * additions);
    printf("rounds: %" PRIu64 " words, %" PRIu64 " additions, %" PRIu64 " threads\n", words, sum,
           threads);
    printf("validation: passed\n");
    return finish();
}
