/*
 * btree: look-ups of random keys in an index, a B+ tree in memory (Comer,
 * "The Ubiquitous B-Tree", ACM Computing Surveys 11(2), 1979) of small
 * nodes, each a block of the heap, whose leaves point to records, again
 * blocks of the heap.
 *
 * Keys are inserted in random order, so the nodes of a path lie anywhere in
 * the heap. Each step of a look-up needs the one before: nothing overlaps
 * within a look-up, only neighbouring look-ups do.
 *
 * Validation compares each record found with the key asked for, and at the
 * end walks all leaves: keys must ascend, and none may be missing.
 */
#include "common.h"

#include <pthread.h>

#define FANOUT 16 /* children of a node; 256 bytes a node */

struct record {
    uint64_t number; /* of the key, in the order of insertion */
    uint64_t others[7];
};

struct node {
    uint32_t leaf, count;     /* whether it is a leaf; children or records */
    uint64_t key[FANOUT - 1]; /* inner: smallest key below child i + 1; leaf: key of i */
    union {
        struct node *child[FANOUT];
        /* A leaf has at most FANOUT - 1 records; the last pointer is the next leaf. */
        struct record *record[FANOUT];
    };
};

#define NEXT(leaf_node) ((leaf_node)->child[FANOUT - 1])

static struct node *new_node(bool leaf)
{
    struct node *node = allocate(1, sizeof *node);
    node->leaf = leaf;
    node->count = 0;
    if (leaf)
        NEXT(node) = NULL;
    return node;
}

/* Keys that are at most `key`: the child to follow. */
static uint32_t rank_of(const struct node *node, uint32_t keys, uint64_t key)
{
    uint32_t rank = 0;
    while (rank < keys && node->key[rank] <= key)
        rank++;
    return rank;
}

/* What a node that was full hands to its parent. */
struct split {
    struct node *right; /* NULL: nothing */
    uint64_t key;       /* smallest below `right` */
};

static struct split insert_leaf(struct node *leaf, uint64_t key, struct record *record)
{
    struct split split = {NULL, 0};
    if (leaf->count == FANOUT - 1) {
        struct node *right = new_node(true);
        uint32_t kept = leaf->count / 2;
        right->count = leaf->count - kept;
        memcpy(right->key, leaf->key + kept, right->count * sizeof *leaf->key);
        memcpy(right->record, leaf->record + kept, right->count * sizeof *leaf->record);
        leaf->count = kept;
        NEXT(right) = NEXT(leaf);
        NEXT(leaf) = right;
        split = (struct split){right, right->key[0]};
        if (key >= split.key)
            leaf = right;
    }
    uint32_t at = rank_of(leaf, leaf->count, key);
    memmove(leaf->key + at + 1, leaf->key + at, (leaf->count - at) * sizeof *leaf->key);
    memmove(leaf->record + at + 1, leaf->record + at, (leaf->count - at) * sizeof *leaf->record);
    leaf->key[at] = key;
    leaf->record[at] = record;
    leaf->count++;
    return split;
}

static void add_child(struct node *node, uint32_t at, uint64_t key, struct node *child)
{
    memmove(node->key + at + 1, node->key + at, (node->count - 1 - at) * sizeof *node->key);
    memmove(node->child + at + 2, node->child + at + 1,
            (node->count - 1 - at) * sizeof *node->child);
    node->key[at] = key;
    node->child[at + 1] = child;
    node->count++;
}

static struct split insert(struct node *node, uint64_t key, struct record *record)
{
    if (node->leaf)
        return insert_leaf(node, key, record);
    uint32_t at = rank_of(node, node->count - 1, key);
    struct split below = insert(node->child[at], key, record);
    if (below.right == NULL)
        return below;
    struct split split = {NULL, 0};
    if (node->count == FANOUT) {
        struct node *right = new_node(false);
        right->count = FANOUT / 2;
        memcpy(right->key, node->key + FANOUT / 2, (FANOUT / 2 - 1) * sizeof *node->key);
        memcpy(right->child, node->child + FANOUT / 2, FANOUT / 2 * sizeof *node->child);
        node->count = FANOUT / 2;
        split = (struct split){right, node->key[FANOUT / 2 - 1]};
        if (below.key >= split.key) {
            node = right;
            at -= FANOUT / 2;
        }
    }
    add_child(node, at, below.key, below.right);
    return split;
}

static const struct record *find(const struct node *node, uint64_t key)
{
    while (!node->leaf)
        node = node->child[rank_of(node, node->count - 1, key)];
    uint32_t rank = rank_of(node, node->count, key);
    return rank > 0 && node->key[rank - 1] == key ? node->record[rank - 1] : NULL;
}

/* All keys, in random order: mix64 is a bijection. */
static struct node *build(uint64_t keys, uint64_t seed)
{
    struct node *root = new_node(true);
    for (uint64_t number = 0; number < keys; number++) {
        struct record *record = allocate(1, sizeof *record);
        *record = (struct record){number, {number}};
        struct split split = insert(root, mix64(number + seed), record);
        if (split.right == NULL)
            continue;
        struct node *old = root;
        root = new_node(false);
        root->count = 2;
        root->key[0] = split.key;
        root->child[0] = old;
        root->child[1] = split.right;
    }
    return root;
}

struct share {
    pthread_t thread;
    const struct node *root;
    uint64_t keys, seed, lookups, random;
    uint64_t sum; /* result */
};

__attribute__((noinline)) static void *look_up(void *argument)
{
    struct share *share = argument;
    for (uint64_t i = 0; i < share->lookups; i++) {
        uint64_t number = random_below(&share->random, share->keys);
        const struct record *record = find(share->root, mix64(number + share->seed));
        if (record == NULL || record->number != number)
            fail("validation failed: key %" PRIu64 " has %s", number,
                 record == NULL ? "no record" : "another's record");
        share->sum += record->number;
    }
    return NULL;
}

/* Frees everything below; counts records, checks that keys ascend. */
static void take_apart(struct node *node, uint64_t *records, uint64_t *last)
{
    for (uint32_t i = 0; i < node->count; i++) {
        if (!node->leaf) {
            take_apart(node->child[i], records, last);
            continue;
        }
        if (*records != 0 && node->key[i] <= *last)
            fail("validation failed: key %016" PRIx64 " follows %016" PRIx64, node->key[i], *last);
        *last = node->key[i];
        ++*records;
        free(node->record[i]);
    }
    free(node);
}

int main(int argc, char **argv)
{
    uint64_t keys = 200000, lookups = 1000000, seed = 1, threads = 1;
    const struct option_spec options[] = {
        {"keys", OPTION_COUNT, &keys, 1, UINT32_MAX, "keys of the index"},
        {"lookups", OPTION_COUNT, &lookups, 0, UINT64_MAX, "look-ups of random keys"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "seed of keys and look-ups"},
        {"threads", OPTION_COUNT, &threads, 1, 1024, "threads that look up"},
    };
    PARSE_OPTIONS(argc, argv, "Look-ups in a B+ tree in memory.", options);

    struct node *root = build(keys, seed);
    uint64_t depth = 1, sum = 0, records = 0, last = 0;
    for (const struct node *node = root; !node->leaf; node = node->child[0])
        depth++;
    struct share *shares = allocate_zeroed(threads, sizeof *shares);
    for (uint64_t t = 0; t < threads; t++) {
        shares[t] = (struct share){.root = root, .keys = keys, .seed = seed};
        shares[t].lookups = lookups / threads + (t < lookups % threads);
        shares[t].random = mix64(seed) + t;
        if (threads == 1)
            look_up(&shares[t]);
        else if ((errno = pthread_create(&shares[t].thread, NULL, look_up, &shares[t])) != 0)
            fail("cannot start thread %" PRIu64 ": %s", t, strerror(errno));
    }
    for (uint64_t t = 0; t < threads; t++) {
        if (threads > 1)
            pthread_join(shares[t].thread, NULL);
        sum += shares[t].sum;
    }
    free(shares);
    printf("btree: %" PRIu64 " keys, %" PRIu64 " levels, %" PRIu64 " look-ups\n", keys, depth,
           lookups);
    take_apart(root, &records, &last);
    if (records != keys)
        fail("validation failed: %" PRIu64 " records, %" PRIu64 " inserted", records, keys);
    printf("validation: passed, sum 0x%016" PRIx64 "\n", sum);
    return finish();
}
