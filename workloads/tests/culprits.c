// Programs whose costly part is known by name.
//
//   culprits hash     a hash table that is probed at random beside an array that is scanned
//   culprits mappings two mappings of one size, one read at random and a part of one in order; with a further
//                     argument it prints which of them are on huge pages
//   culprits many     64 mappings of 1 MB, read at random
//   culprits malloc   memory of malloc, read at random
//   culprits sites    three lists, one of which is walked
//   culprits nodes    three lists of malloc's blocks, which lie between each other, one of which is walked
//   culprits threads  three threads, one of which reads at random
//   culprits deep     a recursion a million deep
//
// Each has 64 MB of costly memory and does 400,000 costly accesses.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// Functions stay apart that have the same body.
#define NEVER_INLINE __attribute__((noipa))
enum { BYTES = 64 << 20, ACCESSES = 400000 };

static uint64_t state = 1;

static uint64_t next_random(uint64_t *of)
{
    *of = *of * 6364136223846793005u + 1442695040888963407u;
    return *of >> 20;
}

NEVER_INLINE static void *map_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        exit(1);
    return memory;
}

NEVER_INLINE static void fill(uint64_t *words)
{
    for (size_t i = 0; i < BYTES / sizeof *words; i += 8)
        words[i] = i;
}

NEVER_INLINE static uint64_t read_at_random(const uint64_t *words, uint64_t seed)
{
    uint64_t sum = 0;
    for (int i = 0; i < ACCESSES; i++)
        sum += words[next_random(&seed) % (BYTES / sizeof *words)];
    return sum;
}

NEVER_INLINE static uint64_t read_in_order(const uint64_t *words)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < ACCESSES; i++)
        sum += words[i];
    return sum;
}

NEVER_INLINE static uint64_t probe_table(const uint64_t *table)
{
    return read_at_random(table, 7);
}

NEVER_INLINE static uint64_t scan_array(const uint64_t *array)
{
    return read_in_order(array);
}

// A store after the call: a tail call would leave no frame.
NEVER_INLINE static uint64_t *map_table(void)
{
    uint64_t *memory = map_memory(BYTES);
    memory[1] = 1;
    return memory;
}

NEVER_INLINE static uint64_t *map_array(void)
{
    uint64_t *memory = map_memory(BYTES);
    memory[1] = 2;
    return memory;
}

static uint64_t hash(void)
{
    uint64_t *array = map_array(), *table = map_table();
    fill(array);
    fill(table);
    return scan_array(array) + probe_table(table);
}

// Prints the huge pages of the mapping at an address.
static void print_huge_pages(const char *name, const void *memory)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long start, end, kilobytes, found = 0;
    int inside = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx %*s", &start, &end) == 2)
            inside = start <= (uintptr_t)memory && (uintptr_t)memory < end;
        else if (inside && sscanf(line, "AnonHugePages: %lu", &kilobytes) == 1)
            found = kilobytes;
    }
    if (file)
        fclose(file);
    printf("%s: %lu kB of huge pages\n", name, found);
}

// As often as the random reads, in memory that a few pages hold.
NEVER_INLINE static uint64_t read_part_in_order(const uint64_t *words)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < ACCESSES; i++)
        sum += words[i % (1 << 15)];
    return sum;
}

static uint64_t mappings(int prints)
{
    uint64_t *random = map_table(), *ordered = map_array();
    fill(random);
    if (prints) {
        print_huge_pages("random", random);
        print_huge_pages("ordered", ordered);
    }
    return read_at_random(random, 7) + read_part_in_order(ordered);
}

static uint64_t many(void)
{
    enum { COUNT = 64, WORDS = BYTES / COUNT / sizeof(uint64_t) };
    static uint64_t *parts[COUNT];
    uint64_t sum = 0, seed = 7;
    for (int i = 0; i < COUNT; i++) {
        parts[i] = map_memory(BYTES / COUNT);
        for (size_t word = 0; word < WORDS; word += 8)
            parts[i][word] = word;
    }
    for (int i = 0; i < ACCESSES; i++) {
        uint64_t at = next_random(&seed);
        sum += parts[at % COUNT][at / COUNT % WORDS];
    }
    return sum;
}

static uint64_t allocated(void)
{
    uint64_t *words = malloc(BYTES);
    if (words == NULL)
        exit(1);
    fill(words);
    return read_at_random(words, 7);
}

struct node {
    struct node *next;
    char payload[1016];
};

NEVER_INLINE static struct node *build_list(struct node *nodes, size_t count)
{
    // A permutation with one cycle: the multiplier is 1 modulo 4, the increment odd, the count a power of two.
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t next = (at * 1664525 + 1013904223) % count;
        nodes[at].next = &nodes[next];
        at = next;
    }
    return nodes;
}

NEVER_INLINE static struct node *site_one(void)
{
    return build_list(map_memory(BYTES), BYTES / sizeof(struct node));
}

NEVER_INLINE static struct node *site_two(void)
{
    return build_list(map_memory(BYTES), BYTES / sizeof(struct node));
}

NEVER_INLINE static struct node *site_three(void)
{
    return build_list(map_memory(BYTES), BYTES / sizeof(struct node));
}

NEVER_INLINE static uint64_t walk_list(const struct node *node)
{
    for (int i = 0; i < ACCESSES; i++)
        node = node->next;
    return (uintptr_t)node;
}

static uint64_t sites(void)
{
    site_one();
    struct node *walked = site_two();
    site_three();
    return walk_list(walked);
}

// A store after the call: a tail call would leave no frame.
NEVER_INLINE static struct node *allocate(void)
{
    struct node *node = malloc(sizeof *node);
    if (node == NULL)
        exit(1);
    node->next = node;
    return node;
}

NEVER_INLINE static struct node *node_one(void)
{
    struct node *node = allocate();
    node->payload[0] = 1;
    return node;
}

NEVER_INLINE static struct node *node_two(void)
{
    struct node *node = allocate();
    node->payload[0] = 2;
    return node;
}

NEVER_INLINE static struct node *node_three(void)
{
    struct node *node = allocate();
    node->payload[0] = 3;
    return node;
}

static uint64_t nodes(void)
{
    enum { COUNT = BYTES / sizeof(struct node) };
    static struct node *walked[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        node_one();
        walked[i] = node_two();
        node_three();
    }
    size_t at = 0;
    for (size_t i = 0; i < COUNT; i++) {
        size_t next = (at * 1664525 + 1013904223) % COUNT;
        walked[at]->next = walked[next];
        at = next;
    }
    return walk_list(walked[0]) - (uintptr_t)walked[0];
}

static uint64_t *shared;

static void *in_order(void *result)
{
    *(uint64_t *)result = read_in_order(shared);
    return NULL;
}

static void *at_random(void *result)
{
    *(uint64_t *)result = read_at_random(shared, 7);
    return NULL;
}

static uint64_t threads(void)
{
    shared = map_memory(BYTES);
    fill(shared);
    void *(*bodies[])(void *) = {in_order, at_random, in_order};
    uint64_t results[3];
    pthread_t started[3];
    for (int i = 0; i < 3; i++)
        if (pthread_create(&started[i], NULL, bodies[i], &results[i]) != 0)
            exit(1);
    for (int i = 0; i < 3; i++)
        pthread_join(started[i], NULL);
    return results[0] + results[1] + results[2];
}

NEVER_INLINE static uint64_t descend(uint64_t depth)
{
    // No loop has this effect: every frame is needed after the call.
    return depth == 0 ? next_random(&state) : (descend(depth - 1) * 3) ^ depth;
}

static void *deep(void *result)
{
    *(uint64_t *)result = descend(1000000);
    return NULL;
}

static uint64_t deeply(void)
{
    // A frame has at least 16 bytes; the thread's stack has room for 64.
    pthread_attr_t attributes;
    pthread_t thread;
    uint64_t result = 0;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 20);
    if (pthread_create(&thread, &attributes, deep, &result) != 0)
        exit(1);
    pthread_join(thread, NULL);
    return result;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    uint64_t result;
    if (strcmp(mode, "hash") == 0)
        result = hash();
    else if (strcmp(mode, "mappings") == 0)
        result = mappings(argc > 2);
    else if (strcmp(mode, "many") == 0)
        result = many();
    else if (strcmp(mode, "malloc") == 0)
        result = allocated();
    else if (strcmp(mode, "sites") == 0)
        result = sites();
    else if (strcmp(mode, "nodes") == 0)
        result = nodes();
    else if (strcmp(mode, "threads") == 0)
        result = threads();
    else if (strcmp(mode, "deep") == 0)
        result = deeply();
    else {
        fprintf(stderr, "usage: culprits hash|mappings|many|malloc|sites|nodes|threads|deep\n");
        return 2;
    }
    printf("%llu\n", (unsigned long long)result);
    return 0;
}
