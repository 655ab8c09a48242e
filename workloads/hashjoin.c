/*
 * hashjoin: the look-ups of HashJoin, which Mitosis measured (Achermann et
 * al., ASPLOS 2020): a hash table is probed with the keys of a relation.
 *
 * Each head of the table has one element of 64 bytes; neighboring heads have
 * theirs in different regions. The key of a row, the first 8 of its 128
 * bytes, has two hashes, which name four heads; the element of each is a
 * match if it has a key, and all have one.
 *
 * That is the program of the measurements: their logs say 2 GB of heads, 16
 * GB of elements in four regions, 16 GB of rows, and 2,000,000,000 matches of
 * 500,000,000 rows.
 *
 * Validation names the heads a second time, without the table.
 */
#include "common.h"

#include <pthread.h>

#define REGIONS 4
#define LOOKUPS 4 /* of each row */

struct element {
    uint64_t key, payload[7];
};

struct row {
    uint64_t key, payload[15];
};

struct table {
    struct element **head;
    struct element *region[REGIONS];
    uint64_t heads;
};

/* Some rows of the relation, and what their look-ups found. */
struct share {
    pthread_t thread;
    const struct table *table;
    const struct row *row;
    uint64_t rows;
    uint64_t matches, sum; /* of all keys found */
};

__attribute__((always_inline)) static inline uint64_t rotate(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

__attribute__((always_inline)) static inline uint64_t finish_hash(uint64_t word)
{
    word = (word ^ word >> 33) * UINT64_C(0xff51afd7ed558ccd);
    word = (word ^ word >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return word ^ word >> 33;
}

/*
 * Two hashes of a key of 8 bytes: MurmurHash3 (Austin Appleby; x64, 128 bits),
 * which reads what is shorter than 16 bytes byte by byte.
 */
__attribute__((noinline)) static void hash(const void *key, uint64_t hashes[2])
{
    const uint64_t length = 8, seed = 42;
    const volatile unsigned char *byte = key;
    uint64_t word = 0;
    for (uint64_t i = length; i-- > 0;)
        word = word << 8 | byte[i];
    word = rotate(word * UINT64_C(0x87c37b91114253d5), 31) * UINT64_C(0x4cf5ad432745937f);
    uint64_t first = (seed ^ word ^ length) + (seed ^ length), second = first + (seed ^ length);
    first = finish_hash(first);
    second = finish_hash(second);
    hashes[0] = first + second;
    hashes[1] = first + 2 * second;
}

/* The head that a row looks at, of so many. */
__attribute__((always_inline)) static inline uint64_t head_of(const uint64_t hashes[2],
                                                              uint64_t lookup, uint64_t heads)
{
    return (hashes[lookup % 2] << (lookup / 2 * 2)) % heads;
}

static struct table new_table(uint64_t heads)
{
    struct table table = {.heads = heads};
    table.head = allocate(heads, sizeof *table.head);
    for (uint64_t i = 0; i < REGIONS; i++)
        table.region[i] = allocate(heads / REGIONS + 1, sizeof **table.region);
    for (uint64_t i = 0; i < heads; i++) {
        table.head[i] = &table.region[i % REGIONS][i / REGIONS];
        table.head[i]->key = i + 1;
    }
    return table;
}

__attribute__((noinline)) static void *probe(void *argument)
{
    struct share *share = argument;
    const struct table *table = share->table;
    uint64_t matches = 0, sum = 0;
    for (uint64_t i = 0; i < share->rows; i++) {
        uint64_t hashes[2];
        hash(&share->row[i].key, hashes);
#pragma GCC unroll 4
        for (uint64_t lookup = 0; lookup < LOOKUPS; lookup++) {
            const struct element *element = table->head[head_of(hashes, lookup, table->heads)];
            if (element != NULL && element->key != 0) {
                matches++;
                sum += element->key;
            }
        }
    }
    share->matches = matches;
    share->sum = sum;
    return NULL;
}

int main(int argc, char **argv)
{
    uint64_t heads = 500000, rows = 500000, seed = 1, threads = 1;
    const struct option_spec options[] = {
        {"heads", OPTION_COUNT, &heads, 1, UINT32_MAX, "heads of the table, and elements"},
        {"rows", OPTION_COUNT, &rows, 1, UINT32_MAX, "rows that look four heads up"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "key of the first row"},
        {"threads", OPTION_COUNT, &threads, 1, 1024, "threads that look up"},
    };
    PARSE_OPTIONS(argc, argv, "Look-ups in a hash table that is larger than the caches.", options);

    struct table table = new_table(heads);
    struct row *relation = allocate_zeroed(rows, sizeof *relation);
    for (uint64_t i = 0; i < rows; i++)
        relation[i].key = seed + i;

    struct share *shares = allocate_zeroed(threads, sizeof *shares);
    uint64_t first = 0;
    for (uint64_t t = 0; t < threads; t++) {
        uint64_t share = rows / threads + (t < rows % threads);
        shares[t] = (struct share){.table = &table, .row = relation + first, .rows = share};
        first += share;
        if (threads == 1)
            probe(&shares[t]);
        else if ((errno = pthread_create(&shares[t].thread, NULL, probe, &shares[t])) != 0)
            fail("cannot start thread %" PRIu64 ": %s", t, strerror(errno));
    }
    uint64_t matches = 0, sum = 0, expected = 0;
    for (uint64_t t = 0; t < threads; t++) {
        if (threads > 1)
            pthread_join(shares[t].thread, NULL);
        matches += shares[t].matches;
        sum += shares[t].sum;
    }
    for (uint64_t i = 0; i < rows; i++) {
        uint64_t hashes[2], key = seed + i;
        hash(&key, hashes);
        for (uint64_t lookup = 0; lookup < LOOKUPS; lookup++)
            expected += head_of(hashes, lookup, heads) + 1;
    }
    printf("hashjoin: %" PRIu64 " heads, %" PRIu64 " rows, %" PRIu64 " threads\n", heads, rows,
           threads);
    if (matches != rows * LOOKUPS || sum != expected)
        fail("validation failed: %" PRIu64 " matches with sum 0x%016" PRIx64 ", not %" PRIu64
             " with 0x%016" PRIx64,
             matches, sum, rows * LOOKUPS, expected);
    printf("validation: passed, %" PRIu64 " matches, sum 0x%016" PRIx64 "\n", matches, sum);
    free(shares);
    free(relation);
    for (uint64_t i = 0; i < REGIONS; i++)
        free(table.region[i]);
    free(table.head);
    return finish();
}
