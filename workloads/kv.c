/*
 * kv: the memory side of a key-value cache server: look-ups of popular keys
 * in a chained hash table, over a heap of small blocks of many sizes that
 * updates keep reshuffling.
 *
 * Popularity is Zipfian, exponent 0.99, as in YCSB (Cooper et al.,
 * "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010); popular keys
 * are spread over the table by hashing. Value sizes follow the generalized
 * Pareto distribution that Atikoglu et al. fitted to Facebook's largest
 * memcached pool, ETC ("Workload Analysis of a Large-Scale Key-Value Store",
 * SIGMETRICS 2012, section 5: shape 0.348238), scaled to the mean asked for
 * (theirs: 329 bytes) and cut at 1 MiB, memcached's item limit. The mix is
 * 90 % get, 9 % set, 1 % delete unless asked otherwise.
 *
 * Each client thread owns keys that no other asks for, and remembers the
 * version it last stored of each. So every answer can be checked in full,
 * and output does not depend on how threads interleave, although they share
 * the table and its locks.
 */
#include "common.h"

#include <pthread.h>

#define PARETO_SHAPE 0.348238
#define LARGEST_VALUE MIB
#define LOCKS 1024 /* bucket i belongs to lock i mod LOCKS, as in memcached */

/* ---- server ----------------------------------------------------------- */

struct item {
    struct item *next;
    uint64_t key;
    uint64_t length;
    uint64_t words[]; /* the value, in 8-byte words; the last may be partial */
};

struct table {
    struct item **bucket;
    uint64_t mask;
    pthread_mutex_t lock[LOCKS];
};

static uint64_t words_of(uint64_t length)
{
    return (length + 7) / 8;
}

static pthread_mutex_t *lock_of(struct table *table, uint64_t hash)
{
    return &table->lock[hash & table->mask & (LOCKS - 1)];
}

/* The link that points to the item, or the null link that ends its chain. */
static struct item **find(struct table *table, uint64_t key)
{
    struct item **link = &table->bucket[mix64(key) & table->mask];
    while (*link != NULL && (*link)->key != key)
        link = &(*link)->next;
    return link;
}

/* Stores `item`, replacing what has the same key. */
static void server_set(struct table *table, struct item *item)
{
    pthread_mutex_t *lock = lock_of(table, mix64(item->key));
    pthread_mutex_lock(lock);
    struct item **link = find(table, item->key);
    struct item *old = *link;
    item->next = old != NULL ? old->next : NULL;
    *link = item;
    pthread_mutex_unlock(lock);
    free(old);
}

/* Copies the value to `reply`, which has room for the largest. */
static bool server_get(struct table *table, uint64_t key, uint64_t *reply, uint64_t *length)
{
    pthread_mutex_t *lock = lock_of(table, mix64(key));
    pthread_mutex_lock(lock);
    const struct item *item = *find(table, key);
    if (item != NULL) {
        *length = item->length;
        memcpy(reply, item->words, words_of(item->length) * 8);
    }
    pthread_mutex_unlock(lock);
    return item != NULL;
}

static bool server_delete(struct table *table, uint64_t key)
{
    pthread_mutex_t *lock = lock_of(table, mix64(key));
    pthread_mutex_lock(lock);
    struct item **link = find(table, key);
    struct item *old = *link;
    if (old != NULL)
        *link = old->next;
    pthread_mutex_unlock(lock);
    free(old);
    return old != NULL;
}

/* ---- clients ---------------------------------------------------------- */

/*
 * Zipf by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion
 * to generate variates from monotone discrete distributions", ACM TOMACS
 * 6(3), 1996): constant memory, so that the client adds no misses.
 */
struct zipf {
    double exponent, first, last; /* range of the integral that is inverted */
    uint64_t ranks;
};

/* Integral of t^-s from 1 to x. */
static double zipf_integral(double s, double x)
{
    return s == 1.0 ? log(x) : expm1((1.0 - s) * log(x)) / (1.0 - s);
}

static double zipf_inverse(double s, double y)
{
    return s == 1.0 ? exp(y) : exp(log1p((1.0 - s) * y) / (1.0 - s));
}

static struct zipf new_zipf(double exponent, uint64_t ranks)
{
    /* Below 1.5 lies rank 1, whose area is made 1 = 1^-s exactly. */
    return (struct zipf){
        .exponent = exponent,
        .first = zipf_integral(exponent, 1.5) - 1.0,
        .last = zipf_integral(exponent, (double)ranks + 0.5),
        .ranks = ranks,
    };
}

/* A rank from 0 (most popular) to ranks - 1. */
static uint64_t draw_rank(const struct zipf *zipf, uint64_t *random)
{
    for (;;) {
        double y = zipf->first + (zipf->last - zipf->first) * random_real(random);
        double k = floor(zipf_inverse(zipf->exponent, y) + 0.5);
        k = k<1.0 ? 1.0 : k>(double) zipf->ranks ? (double)zipf->ranks : k;
        if (y >= zipf_integral(zipf->exponent, k + 0.5) - pow(k, -zipf->exponent))
            return (uint64_t)k - 1;
    }
}

struct settings {
    uint64_t keys, operations, value_size, sets, deletes, seed, threads;
    double exponent;
};

struct client {
    pthread_t thread;
    const struct settings *settings;
    struct table *table;
    uint64_t number, keys, operations;
    uint32_t *version; /* of each key, as last stored; 0: not stored */
    uint64_t gets, hits, sets, deletes, deleted, checksum; /* results */
};

/* Distinct for all clients and ranks, since mix64 is a bijection. */
static uint64_t key_of(const struct client *client, uint64_t rank)
{
    return mix64(rank * client->settings->threads + client->number + client->settings->seed);
}

/* What a version of a key contains: a length and a stream of words. */
static uint64_t length_of(const struct settings *settings, uint64_t *content)
{
    double scale = (double)settings->value_size * (1.0 - PARETO_SHAPE);
    double u = 1.0 - random_real(content); /* in (0, 1] */
    double length = 1.0 + scale * (pow(u, -PARETO_SHAPE) - 1.0) / PARETO_SHAPE;
    return length < (double)LARGEST_VALUE ? (uint64_t)length : LARGEST_VALUE;
}

static void store(struct client *client, uint64_t rank)
{
    uint64_t key = key_of(client, rank);
    uint64_t content = key ^ mix64(++client->version[rank]);
    uint64_t length = length_of(client->settings, &content);
    struct item *item = allocate(1, sizeof *item + words_of(length) * 8);
    item->key = key;
    item->length = length;
    for (uint64_t i = 0; i < words_of(length); i++)
        item->words[i] = random_bits(&content);
    server_set(client->table, item);
}

/* Asks for a key and checks the answer against what was stored. */
static bool check(struct client *client, uint64_t rank, uint64_t *reply)
{
    uint64_t key = key_of(client, rank);
    uint64_t length = 0;
    bool hit = server_get(client->table, key, reply, &length);
    if (hit != (client->version[rank] != 0))
        fail("validation failed: key %016" PRIx64 " is %s", key, hit ? "not deleted" : "lost");
    if (!hit)
        return false;
    uint64_t content = key ^ mix64(client->version[rank]);
    if (length != length_of(client->settings, &content))
        fail("validation failed: key %016" PRIx64 " has %" PRIu64 " bytes", key, length);
    uint64_t sum = length;
    for (uint64_t i = 0; i < words_of(length); i++) {
        if (reply[i] != random_bits(&content))
            fail("validation failed: key %016" PRIx64 ", word %" PRIu64 " is wrong", key, i);
        sum = sum * 31 + reply[i];
    }
    client->checksum += mix64(sum);
    return true;
}

static void erase(struct client *client, uint64_t rank)
{
    bool found = server_delete(client->table, key_of(client, rank));
    if (found != (client->version[rank] != 0))
        fail("validation failed: deletion of key %016" PRIx64, key_of(client, rank));
    client->deleted += found;
    client->version[rank] = 0;
}

__attribute__((noinline)) static void operate(struct client *client, uint64_t *reply)
{
    const struct settings *settings = client->settings;
    uint64_t random = mix64(settings->seed) + client->number;
    struct zipf zipf = new_zipf(settings->exponent, client->keys);
    for (uint64_t i = 0; i < client->operations; i++) {
        uint64_t rank = draw_rank(&zipf, &random);
        uint64_t percent = random_below(&random, 100);
        if (percent < settings->sets) {
            client->sets++;
            store(client, rank);
        } else if (percent < settings->sets + settings->deletes) {
            client->deletes++;
            erase(client, rank);
        } else {
            client->gets++;
            client->hits += check(client, rank, reply);
        }
    }
}

static void *run_client(void *argument)
{
    struct client *client = argument;
    uint64_t *reply = allocate(LARGEST_VALUE, 1);
    client->version = allocate_zeroed(client->keys, sizeof *client->version);
    for (uint64_t rank = 0; rank < client->keys; rank++)
        store(client, rank);
    operate(client, reply);
    for (uint64_t rank = 0; rank < client->keys; rank++)
        check(client, rank, reply);
    free(reply);
    return NULL;
}

/* ---- the whole -------------------------------------------------------- */

static struct table *new_table(uint64_t keys)
{
    struct table *table = allocate(1, sizeof *table);
    uint64_t buckets = 1;
    while (buckets < keys)
        buckets *= 2;
    table->bucket = allocate_zeroed(buckets, sizeof *table->bucket);
    table->mask = buckets - 1;
    for (size_t i = 0; i < LOCKS; i++)
        pthread_mutex_init(&table->lock[i], NULL);
    return table;
}

/* Frees everything; returns how many items there were. */
static uint64_t free_table(struct table *table)
{
    uint64_t items = 0;
    for (uint64_t i = 0; i <= table->mask; i++)
        for (struct item *item = table->bucket[i], *next; item != NULL; item = next, items++) {
            next = item->next;
            free(item);
        }
    free(table->bucket);
    free(table);
    return items;
}

/* Serves all clients; returns their results and keys left, added up. */
static struct client run_all(const struct settings *settings, struct table *table)
{
    struct client *clients = allocate_zeroed(settings->threads, sizeof *clients);
    struct client sum = {.keys = 0};
    for (uint64_t t = 0; t < settings->threads; t++) {
        struct client *client = &clients[t];
        client->settings = settings;
        client->table = table;
        client->number = t;
        client->keys =
            settings->keys / settings->threads + (t < settings->keys % settings->threads);
        client->operations = settings->operations / settings->threads +
                             (t < settings->operations % settings->threads);
        if (settings->threads == 1)
            run_client(client);
        else if ((errno = pthread_create(&client->thread, NULL, run_client, client)) != 0)
            fail("cannot start thread %" PRIu64 ": %s", t, strerror(errno));
    }
    for (uint64_t t = 0; t < settings->threads; t++) {
        struct client *client = &clients[t];
        if (settings->threads > 1)
            pthread_join(client->thread, NULL);
        for (uint64_t rank = 0; rank < client->keys; rank++)
            sum.keys += client->version[rank] != 0;
        sum.gets += client->gets;
        sum.hits += client->hits;
        sum.sets += client->sets;
        sum.deletes += client->deletes;
        sum.deleted += client->deleted;
        sum.checksum += client->checksum;
        free(client->version);
    }
    free(clients);
    return sum;
}

int main(int argc, char **argv)
{
    struct settings s = {.keys = 200000,
                         .operations = 1000000,
                         .value_size = 329,
                         .sets = 9,
                         .deletes = 1,
                         .seed = 1,
                         .threads = 1,
                         .exponent = 0.99};
    const struct option_spec options[] = {
        {"keys", OPTION_COUNT, &s.keys, 1, UINT32_MAX, "keys, all stored at the start"},
        {"operations", OPTION_COUNT, &s.operations, 0, UINT32_MAX, "requests after that"},
        {"value-size", OPTION_SIZE, &s.value_size, 1, 64 * KIB, "mean size of a value"},
        {"sets", OPTION_COUNT, &s.sets, 0, 100, "percent of requests that set"},
        {"deletes", OPTION_COUNT, &s.deletes, 0, 100, "percent of requests that delete"},
        {"zipf", OPTION_REAL, &s.exponent, 0, 10, "exponent of popularity; 0: uniform"},
        {"seed", OPTION_COUNT, &s.seed, 0, UINT64_MAX, "seed of keys, values and requests"},
        {"threads", OPTION_COUNT, &s.threads, 1, 1024, "client threads"},
    };
    PARSE_OPTIONS(argc, argv, "Requests to a key-value cache.", options);
    if (s.sets + s.deletes > 100)
        usage_error("--sets and --deletes: %" PRIu64 " %% together", s.sets + s.deletes);
    if (s.threads > s.keys)
        usage_error("--threads: %" PRIu64 " is more than there are keys", s.threads);

    struct table *table = new_table(s.keys);
    struct client sum = run_all(&s, table);
    uint64_t items = free_table(table);
    printf("kv: %" PRIu64 " keys, %" PRIu64 " requests, %" PRIu64 " threads\n", s.keys,
           s.operations, s.threads);
    printf("get: %" PRIu64 ", %" PRIu64 " hits\n", sum.gets, sum.hits);
    printf("set: %" PRIu64 "\n", sum.sets);
    printf("delete: %" PRIu64 ", %" PRIu64 " hits\n", sum.deletes, sum.deleted);
    printf("checksum: 0x%016" PRIx64 "\n", sum.checksum);
    if (items != sum.keys)
        fail("validation failed: %" PRIu64 " items in the table, %" PRIu64 " stored", items,
             sum.keys);
    printf("validation: passed, %" PRIu64 " keys at the end\n", items);
    return finish();
}
