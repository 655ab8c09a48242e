/* How long malloc and free take while another thread frees much memory.
 *
 * latency MEGABYTES ROUNDS
 *
 * In each round a second thread allocates MEGABYTES, half of them in objects of 1 MB and half in objects of 100 to
 * 1,000 bytes, and frees them all. While it frees, this thread times each malloc and free of its own: 16 bytes to
 * 1 KB, one in 16 up to 64 KB, one in 256 up to 4 MB. It also times what it does between them, which calls nothing:
 * how long others take the CPU, or a hypervisor the whole computer. Times in which the kernel ran something else on
 * this CPU are not counted, as far as is known: those above 20 us after which the thread had more involuntary switches
 * than 64 calls before. Writes the number of turns timed and of those left out, then for malloc, free and between
 * them the microseconds of p50, p99, p99.9 and the maximum. */
#define _GNU_SOURCE
#include "../bench.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

enum { RING = 1000, LARGE = 1 << 20, STEPS = 32, BUCKETS = 48 * STEPS, LOOK = 64, TIMES = 3 };
static uint64_t counts[TIMES][BUCKETS], most[TIMES], timed, left_out;
static atomic_int freeing, over;
static size_t total;
static int rounds;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static long switches(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

/* Thirty-two equal steps to a doubling. */
static int bucket(uint64_t value) {
    if (value < STEPS) return value;
    int log = 63 - __builtin_clzll(value);
    return (log - 4) * STEPS + (value >> (log - 5)) - STEPS;
}
static uint64_t least(int at) {
    if (at < STEPS) return at;
    return (uint64_t)(at % STEPS + STEPS) << (at / STEPS - 1);
}

static void *frees(void *unused) {
    uint64_t random = 777;
    size_t capacity = total / 256;
    char **all = mmap(NULL, capacity * sizeof *all, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) abort();
    for (int round = 0; round < rounds; round++) {
        size_t objects = 0;
        for (size_t bytes = 0; bytes < total && objects < capacity; objects++) {
            size_t size = bytes / LARGE % 2 ? LARGE : 100 + next_random(&random) % 901;
            all[objects] = memset(use(malloc(size), size), 1, size);
            bytes += size;
        }
        atomic_store(&freeing, 1);
        for (size_t i = 0; i < objects; i++) free(all[i]);
        atomic_store(&freeing, 0);
    }
    atomic_store(&over, 1);
    return unused;
}

static double percentile(int which, double part) {
    uint64_t all = 0, seen = 0;
    for (int i = 0; i < BUCKETS; i++) all += counts[which][i];
    for (int i = 0; i < BUCKETS; i++) {
        seen += counts[which][i];
        if (seen >= all * part) return least(i) / 1000.0;
    }
    return 0;
}

int main(int count, char **arguments) {
    static char *ring[RING];
    uint64_t random = 12345;
    pthread_t thread;
    if (count != 3) return 2;
    total = strtoul(arguments[1], NULL, 10) << 20;
    rounds = atoi(arguments[2]);
    if (pthread_create(&thread, NULL, frees, NULL)) return 1;
    long before = switches();
    /* When the last malloc ended, if there was no system call of ours since. */
    uint64_t ended = 0;
    for (unsigned i = 0; !atomic_load(&over); i++) {
        if (!atomic_load(&freeing)) {
            nanosleep(&(struct timespec){0, 100000}, NULL);
            before = switches();
            ended = 0;
            continue;
        }
        uint64_t draw = next_random(&random);
        size_t size = 16 + draw % 1008;
        if (draw >> 32 & 15)
            size += 0;
        else
            size = (draw >> 40 & 15) ? 1 + (draw >> 44) % 65536 : 1 + (draw >> 44) % (4 << 20);
        char **slot = &ring[(draw >> 20) % RING];
        uint64_t start = now();
        free(*slot);
        uint64_t middle = now();
        *slot = malloc(size);
        uint64_t end = now();
        if (!*slot) abort();
        **slot = 1;
        uint64_t took[TIMES] = {end - middle, middle - start, ended ? start - ended : 0};
        int known = ended ? TIMES : TIMES - 1;
        int slow = took[0] > 20000 || took[1] > 20000 || took[2] > 20000, preempted = 0;
        ended = end;
        if (slow || i % LOOK == 0) {
            long after = switches();
            preempted = slow && after > before;
            before = after;
            ended = 0;
        }
        timed++;
        if (preempted) {
            left_out++;
            continue;
        }
        for (int which = 0; which < known; which++) {
            counts[which][bucket(took[which])]++;
            if (took[which] > most[which]) most[which] = took[which];
        }
    }
    pthread_join(thread, NULL);
    printf("%llu %llu", (unsigned long long)timed, (unsigned long long)left_out);
    for (int which = 0; which < TIMES; which++)
        printf(" %.3f %.3f %.3f %.3f", percentile(which, 0.5), percentile(which, 0.99),
               percentile(which, 0.999), most[which] / 1000.0);
    printf("\n");
    return timed < 1000;
}
