/*
 * gups: random read-modify-write updates of one large table, the access
 * pattern with no locality at all, so nearly every update misses the TLB
 * once the table outgrows its reach.
 *
 * The rules are those of RandomAccess in the HPC Challenge benchmark:
 *  - the table has 2^k 64-bit words, word i starts as i;
 *  - the stream is a(0) = 1, a(n+1) = x * a(n) in GF(2)[x] modulo
 *    x^64 + x^2 + x + 1, and each of its words updates the table by
 *    table[a mod 2^k] ^= a;
 *  - there are 4 * 2^k updates unless asked otherwise;
 *  - verification repeats the updates (xor undoes itself) without races and
 *    counts the words that differ from i; 1 % may be wrong, because updates
 *    of different threads may get lost. One thread must make no error.
 * HPCC allows 1024 updates to be looked ahead; this program does one at a
 * time and leaves the overlap to the hardware.
 */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define POLYNOMIAL UINT64_C(7)                      /* x^2 + x + 1; x^64 is the bit shifted out */
#define STREAM_PERIOD UINT64_C(1317624576693539401) /* (2^63 - 1) / 7; HPCC's PERIOD */
#define HUGE_PAGE (2 * MIB)

static uint64_t next(uint64_t a)
{
    return (a << 1) ^ (a >> 63 ? POLYNOMIAL : 0);
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (; b != 0; b >>= 1, a = next(a))
        if (b & 1)
            product ^= a;
    return product;
}

/* a(n) = x^n, by repeated squaring. */
static uint64_t stream_at(uint64_t n)
{
    uint64_t power = 1;
    uint64_t square = 2;
    for (; n != 0; n >>= 1, square = multiply(square, square))
        if (n & 1)
            power = multiply(power, square);
    return power;
}

/* A share of the updates: `count` of them from position `first` on. */
struct share {
    _Atomic uint64_t *table;
    uint64_t mask;
    uint64_t first, count;
    uint64_t last; /* result: the last stream word used */
};

/*
 * Load and store are separate on purpose: HPCC asks for no atomic update.
 * Relaxed atomics compile to plain moves and make the race defined in C.
 */
static void *update(void *argument)
{
    struct share *share = argument;
    _Atomic uint64_t *table = share->table;
    uint64_t mask = share->mask;
    uint64_t a = stream_at(share->first);
    for (uint64_t i = 0; i < share->count; i++) {
        a = next(a);
        uint64_t word = atomic_load_explicit(&table[a & mask], memory_order_relaxed);
        atomic_store_explicit(&table[a & mask], word ^ a, memory_order_relaxed);
    }
    share->last = a;
    return NULL;
}

/* All updates, split evenly over the threads. Returns the last stream word. */
static uint64_t update_all(struct share all, uint64_t threads)
{
    if (threads == 1) {
        update(&all);
        return all.last;
    }
    pthread_t *handles = allocate(threads, sizeof *handles);
    struct share *shares = allocate(threads, sizeof *shares);
    uint64_t first = all.first;
    for (uint64_t t = 0; t < threads; t++) {
        shares[t] = all;
        shares[t].first = first;
        shares[t].count = all.count / threads + (t < all.count % threads);
        first += shares[t].count;
        int error = pthread_create(&handles[t], NULL, update, &shares[t]);
        if (error != 0)
            fail("cannot start thread %" PRIu64 ": %s", t, strerror(error));
    }
    for (uint64_t t = 0; t < threads; t++)
        pthread_join(handles[t], NULL);
    uint64_t last = shares[threads - 1].last;
    free(handles);
    free(shares);
    return last;
}

/* Aligned to 2 MiB, so that huge pages can back all of it. */
static void *allocate_table(uint64_t bytes, bool huge)
{
    void *table;
    int error = posix_memalign(&table, HUGE_PAGE, bytes);
    if (error != 0)
        fail("cannot allocate %" PRIu64 " bytes: %s", bytes, strerror(error));
    if (huge && madvise(table, bytes, MADV_HUGEPAGE) != 0)
        fprintf(stderr, "gups: --huge: madvise: %s; going on without\n", strerror(errno));
    return table;
}

static void verify(struct share all, uint64_t threads)
{
    update(&all);
    uint64_t words = all.mask + 1;
    uint64_t errors = 0;
    for (uint64_t i = 0; i < words; i++)
        errors += atomic_load_explicit(&all.table[i], memory_order_relaxed) != i;
    uint64_t allowed = threads == 1 ? 0 : words / 100;
    if (errors > allowed)
        fail("validation failed: %" PRIu64 " of %" PRIu64 " words are wrong, %" PRIu64 " may be",
             errors, words, allowed);
    /* With several threads the exact number is a matter of luck: not printed. */
    printf("validation: passed, at most %" PRIu64 " wrong words\n", allowed);
}

int main(int argc, char **argv)
{
    uint64_t size = 64 * MIB, updates = 0, seed = 0, threads = 1;
    bool huge = false, no_verify = false;
    const struct option_spec options[] = {
        {"size", OPTION_SIZE, &size, 8, TIB, "table size, a power of two"},
        {"updates", OPTION_COUNT, &updates, 0, UINT64_MAX, "updates; 0: four per table word"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "start in the stream; 0: HPCC's"},
        {"threads", OPTION_COUNT, &threads, 1, 1024, "threads that share the updates"},
        {"huge", OPTION_FLAG, &huge, 0, 0, "ask for huge pages (MADV_HUGEPAGE)"},
        {"no-verify", OPTION_FLAG, &no_verify, 0, 0, "skip verification"},
    };
    PARSE_OPTIONS(argc, argv, "Random updates of a table (HPCC RandomAccess).", options);
    if ((size & (size - 1)) != 0)
        usage_error("--size: %" PRIu64 " is not a power of two", size);

    uint64_t words = size / sizeof(uint64_t);
    if (updates == 0)
        updates = 4 * words;
    struct share all = {.table = allocate_table(size, huge), .mask = words - 1, .count = updates};
    if (seed != 0)
        all.first = mix64(seed) % STREAM_PERIOD;

    for (uint64_t i = 0; i < words; i++)
        atomic_init(&all.table[i], i);
    uint64_t last = update_all(all, threads);
    printf("gups: %" PRIu64 " words, %" PRIu64 " updates, %" PRIu64 " threads\n", words, updates,
           threads);
    printf("last stream word: 0x%016" PRIx64 "\n", last);
    if (no_verify)
        printf("validation: skipped\n");
    else
        verify(all, threads);
    free((void *)all.table);
    return finish();
}
