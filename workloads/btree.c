/*
 * btree: look-ups of random keys in an index, a B+ tree in memory (Comer,
 * "The Ubiquitous B-Tree", ACM Computing Surveys 11(2), 1979).
 *
 * Its memory is laid out as in BTree, which Mitosis measured (Achermann et
 * al., ASPLOS 2020): a node has its keys and its children in two blocks of
 * the heap and is itself, like records, one of many in a piece of 256 KB that
 * begins at a multiple of 2 MB. Leaves point to records, records to elements
 * of two large arrays. Even keys are inserted upwards, odd ones downwards.
 *
 * Each step of a look-up needs the one before: nothing overlaps within a
 * look-up, only neighboring look-ups do.
 *
 * Validation compares each element found with the key asked for, and at the
 * end walks all leaves: keys must ascend, and none may be missing.
 */
#include "common.h"

#include <pthread.h>

#define FANOUT 16         /* children of a node */
#define PIECE (256 * KIB) /* of nodes or of records */
#define PIECE_ALIGNMENT (2 * MIB)

struct element {
    uint64_t number; /* of the key among those inserted in the same direction */
    uint64_t other;
};

struct record {
    union {
        const struct element *element;
        struct record *unused; /* the next one that is not used yet */
    };
    uint64_t flags;
};

struct node {
    union {
        struct node **child;
        /* A leaf has at most FANOUT - 1 records; the last pointer is the next leaf. */
        struct record **record;
    };
    uint64_t *key;        /* inner: smallest key below child i + 1; leaf: key of i */
    void *parent;         /* as large as the measured one's */
    uint32_t leaf, count; /* whether it is a leaf; children or records */
    uint64_t other;
    struct node *unused; /* the next one that is not used yet */
};

/* Nodes and records that are not used yet. */
static struct node *nodes;
static struct record *records;

#define NEXT(leaf_node) ((leaf_node)->child[FANOUT - 1])

static void *allocate_aligned(uint64_t alignment, uint64_t bytes)
{
    void *memory;
    if ((errno = posix_memalign(&memory, alignment, bytes)) != 0)
        fail("cannot allocate %" PRIu64 " bytes: %s", bytes, strerror(errno));
    return memset(memory, 0, bytes);
}

/* Pieces live as long as the program. */
static struct record *new_record(const struct element *element)
{
    if (records == NULL) {
        struct record *piece = allocate_aligned(PIECE_ALIGNMENT, PIECE);
        for (uint64_t i = 0; i < PIECE / sizeof *piece; i++) {
            piece[i].unused = records;
            records = &piece[i];
        }
    }
    struct record *record = records;
    records = record->unused;
    record->element = element;
    return record;
}

static struct node *new_node(bool leaf)
{
    if (nodes == NULL) {
        struct node *piece = allocate_aligned(PIECE_ALIGNMENT, PIECE);
        for (uint64_t i = 0; i < PIECE / sizeof *piece; i++) {
            piece[i].unused = nodes;
            nodes = &piece[i];
        }
    }
    struct node *node = nodes;
    nodes = node->unused;
    node->key = allocate_aligned(64, (FANOUT - 1) * sizeof *node->key);
    node->child = allocate_aligned(64, FANOUT * sizeof *node->child);
    node->leaf = leaf;
    node->count = 0;
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
        uint32_t kept = FANOUT / 2;
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
    uint32_t rank = 0;
    while (rank < node->count && node->key[rank] != key)
        rank++;
    return rank < node->count ? node->record[rank] : NULL;
}

static struct node *add(struct node *root, uint64_t key, const struct element *element)
{
    struct split split = insert(root, key, new_record(element));
    if (split.right == NULL)
        return root;
    struct node *node = new_node(false);
    node->count = 2;
    node->key[0] = split.key;
    node->child[0] = root;
    node->child[1] = split.right;
    return node;
}

/* An even number of keys, and an element for each. */
static struct node *build(uint64_t keys, struct element *upwards, struct element *downwards)
{
    struct node *root = new_node(true);
    for (uint64_t number = 0; number < keys / 2; number++) {
        upwards[number].number = downwards[number].number = number;
        root = add(root, 2 * number, &upwards[number]);
        root = add(root, keys - 1 - 2 * number, &downwards[number]);
    }
    return root;
}

struct share {
    pthread_t thread;
    const struct node *root;
    uint64_t keys, seed, lookups, first;
    uint64_t sum; /* result */
};

/* The number of the element that a key finds. */
static uint64_t look_up_key(const struct share *share, uint64_t key)
{
    const struct record *record = find(share->root, key);
    uint64_t number = (key % 2 == 0 ? key : share->keys - 1 - key) / 2;
    if (record == NULL || record->element->number != number)
        fail("validation failed: key %" PRIu64 " has %s", key,
             record == NULL ? "no record" : "another's record");
    return number;
}

__attribute__((noinline)) static void *look_up(void *argument)
{
    struct share *share = argument;
    for (uint64_t i = share->first; i < share->first + share->lookups; i++) {
        /* Knuth's MMIX generator, at its i-th place from the seed on. */
        uint64_t random =
            (i / 2 + share->seed) * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        share->sum += look_up_key(share, (i % 2 == 0 ? random : (random + 1) << 2) % share->keys);
    }
    return NULL;
}

/* Frees blocks of everything below; counts records, checks that keys ascend. */
static void take_apart(struct node *node, uint64_t *found, uint64_t *last)
{
    for (uint32_t i = 0; i < node->count; i++) {
        if (!node->leaf) {
            take_apart(node->child[i], found, last);
            continue;
        }
        if (*found != 0 && node->key[i] <= *last)
            fail("validation failed: key %" PRIu64 " follows %" PRIu64, node->key[i], *last);
        *last = node->key[i];
        ++*found;
    }
    free(node->key);
    free(node->child);
}

int main(int argc, char **argv)
{
    uint64_t keys = 200000, lookups = 1000000, seed = 1, threads = 1;
    const struct option_spec options[] = {
        {"keys", OPTION_COUNT, &keys, 2, UINT32_MAX, "keys of the index, an even number"},
        {"lookups", OPTION_COUNT, &lookups, 0, UINT64_MAX, "look-ups of random keys"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "where the sequence of look-ups begins"},
        {"threads", OPTION_COUNT, &threads, 1, 1024, "threads that look up"},
    };
    PARSE_OPTIONS(argc, argv, "Look-ups in a B+ tree in memory.", options);
    if (keys % 2 != 0)
        usage_error("--keys: %" PRIu64 " is not even", keys);

    struct element *elements[2];
    for (int i = 0; i < 2; i++)
        elements[i] = allocate_aligned(PIECE_ALIGNMENT, keys / 2 * sizeof **elements);
    struct node *root = build(keys, elements[0], elements[1]);
    uint64_t depth = 1, sum = 0, found = 0, last = 0;
    for (const struct node *node = root; !node->leaf; node = node->child[0])
        depth++;
    struct share *shares = allocate_zeroed(threads, sizeof *shares);
    uint64_t first = 0;
    for (uint64_t t = 0; t < threads; t++) {
        shares[t] = (struct share){.root = root, .keys = keys, .seed = seed, .first = first};
        shares[t].lookups = lookups / threads + (t < lookups % threads);
        first += shares[t].lookups;
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
    take_apart(root, &found, &last);
    if (found != keys)
        fail("validation failed: %" PRIu64 " records, %" PRIu64 " inserted", found, keys);
    printf("validation: passed, sum 0x%016" PRIx64 "\n", sum);
    free(elements[0]);
    free(elements[1]);
    return finish();
}
