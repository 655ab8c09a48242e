/*
 * hashjoin: the equi-join of two relations in memory by one shared hash
 * table, without partitioning (Blanas, Li and Patel, "Design and Evaluation
 * of Main Memory Hash Join Algorithms for Multi-core CPUs", SIGMOD 2011,
 * section 3.1).
 *
 * The build relation has distinct keys; its rows are chained from an array of
 * heads, one row a head on average, each from one of the two heads that two
 * hashes of its key name. A row of the probe relation, 128 bytes of which the
 * join needs 16, looks in the chains of both; one in four finds its key. The
 * result goes through a buffer that the consumer reads when it is full.
 *
 * Sizes, the two look-ups a row and the share of matches are those of
 * HashJoin of Mitosis (Achermann et al., ASPLOS 2020; its workloads'
 * repository).
 *
 * Validation compares count and sums of the result with what was drawn.
 */
#include "common.h"

#include <pthread.h>

#define BUFFER 1024 /* result tuples handed over at once */

struct tuple {
    uint64_t key, payload;
};

/* A row of the build relation; its payload is its number. */
struct node {
    struct node *next;
    uint64_t key;
};

/* A row of the probe relation: most of it is of no concern to the join. */
struct row {
    struct tuple tuple;
    uint64_t others[14];
};

struct table {
    struct node **head; /* as many as rows */
    struct node *node;
    uint64_t rows;
};

/* A share of the probe relation and of the result. */
struct share {
    pthread_t thread;
    const struct table *table;
    struct row *probe;
    uint64_t rows;
    uint64_t matches, sum; /* result */
};

/* The first or the second head of a key. */
static struct node **head_of(const struct table *table, uint64_t key, uint64_t choice)
{
    return &table->head[mix64(key + choice) % table->rows];
}

/* Key of a row of the build relation: distinct, since the factor is odd. */
static uint64_t key_of(uint64_t row, uint64_t seed)
{
    return (row + seed) * UINT64_C(0x9e3779b97f4a7c15);
}

__attribute__((noinline)) static void build(struct table *table, uint64_t seed)
{
    for (uint64_t row = 0; row < table->rows; row++) {
        uint64_t key = key_of(row, seed);
        struct node **head = head_of(table, key, row % 2);
        table->node[row] = (struct node){*head, key};
        *head = &table->node[row];
    }
}

static uint64_t consume(const struct tuple *result, uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += result[i].key ^ result[i].payload;
    return sum;
}

__attribute__((noinline)) static void *probe(void *argument)
{
    struct share *share = argument;
    const struct table *table = share->table;
    struct tuple result[BUFFER];
    uint64_t filled = 0;
    for (uint64_t row = 0; row < share->rows; row++) {
        const struct tuple *tuple = &share->probe[row].tuple;
        struct node **heads[2];
        for (uint64_t choice = 0; choice < 2; choice++)
            heads[choice] = head_of(table, tuple->key, choice);
        for (uint64_t choice = 0; choice < (heads[0] == heads[1] ? 1 : 2); choice++) {
            const struct node *node = *heads[choice];
            while (node != NULL && node->key != tuple->key)
                node = node->next;
            if (node == NULL)
                continue;
            result[filled++] = (struct tuple){(uint64_t)(node - table->node), tuple->payload};
            if (filled == BUFFER) {
                share->sum += consume(result, filled);
                share->matches += filled;
                filled = 0;
            }
        }
    }
    share->sum += consume(result, filled);
    share->matches += filled;
    return NULL;
}

/* What a join must add up to. */
struct expected {
    uint64_t matches, sum;
};

/* The probe relation; returns what its join must add up to. */
static struct expected draw(struct row *relation, uint64_t rows, uint64_t build_rows, uint64_t seed)
{
    uint64_t random = mix64(seed);
    struct expected expected = {0, 0};
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t match = random_below(&random, 4 * build_rows);
        relation[row].tuple = (struct tuple){key_of(match, seed), row};
        if (match < build_rows) {
            expected.matches++;
            expected.sum += match ^ row;
        }
    }
    return expected;
}

int main(int argc, char **argv)
{
    uint64_t build_rows = 1000000, probe_rows = 500000, seed = 1, threads = 1;
    const struct option_spec options[] = {
        {"build", OPTION_COUNT, &build_rows, 1, UINT32_MAX, "tuples of the build relation"},
        {"probe", OPTION_COUNT, &probe_rows, 1, UINT32_MAX, "tuples of the probe relation"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "seed of keys and of their order"},
        {"threads", OPTION_COUNT, &threads, 1, 1024, "threads that probe"},
    };
    PARSE_OPTIONS(argc, argv, "A hash join in memory.", options);

    struct table table = {.rows = build_rows};
    table.head = allocate_zeroed(build_rows, sizeof *table.head);
    table.node = allocate(build_rows, sizeof *table.node);
    struct row *relation = allocate_zeroed(probe_rows, sizeof *relation);
    struct expected expected = draw(relation, probe_rows, build_rows, seed);
    build(&table, seed);

    struct share *shares = allocate_zeroed(threads, sizeof *shares);
    uint64_t first = 0;
    for (uint64_t t = 0; t < threads; t++) {
        uint64_t rows = probe_rows / threads + (t < probe_rows % threads);
        shares[t] = (struct share){.table = &table, .probe = relation + first, .rows = rows};
        first += rows;
        if (threads == 1)
            probe(&shares[t]);
        else if ((errno = pthread_create(&shares[t].thread, NULL, probe, &shares[t])) != 0)
            fail("cannot start thread %" PRIu64 ": %s", t, strerror(errno));
    }
    uint64_t matches = 0, sum = 0;
    for (uint64_t t = 0; t < threads; t++) {
        if (threads > 1)
            pthread_join(shares[t].thread, NULL);
        matches += shares[t].matches;
        sum += shares[t].sum;
    }
    printf("hashjoin: %" PRIu64 " tuples joined with %" PRIu64 "\n", build_rows, probe_rows);
    if (matches != expected.matches || sum != expected.sum)
        fail("validation failed: %" PRIu64 " matches with sum 0x%016" PRIx64 ", not %" PRIu64
             " with 0x%016" PRIx64,
             matches, sum, expected.matches, expected.sum);
    printf("validation: passed, %" PRIu64 " matches, sum 0x%016" PRIx64 "\n", matches, sum);
    free(shares);
    free(relation);
    free(table.node);
    free(table.head);
    return finish();
}
