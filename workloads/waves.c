/*
 * waves: demand that rises and falls, as that of a server does. Each wave adds
 * entries, asks for random ones, removes most, as they were added or at
 * random, and goes on asking for those that are left, one in eight of which
 * it replaces. What the allocator does with the memory in between decides how
 * many huge pages the next wave finds.
 *
 * After the redis protocol of Maas et al., "Adaptive Huge-Page Subrelease for
 * Non-moving Memory Allocators in Warehouse-Scale Computers" (ISMM 2021,
 * section 5.1), without the network. Every entry that is asked for is checked
 * word by word.
 */
#include "common.h"

struct entry {
    uint64_t key, words;
    uint64_t word[];
};

static struct entry *make(uint64_t key, uint64_t bytes, uint64_t *random)
{
    uint64_t words = (bytes / 2 + random_below(random, bytes)) / 8 + 1;
    struct entry *entry = allocate(1, sizeof *entry + 8 * words);
    entry->key = key;
    entry->words = words;
    for (uint64_t i = 0; i < words; i++)
        entry->word[i] = mix64(key + i);
    return entry;
}

static bool is_whole(const struct entry *entry)
{
    for (uint64_t i = 0; i < entry->words; i++)
        if (entry->word[i] != mix64(entry->key + i))
            return false;
    return true;
}

/* Asks for entries; how many were not what they should be. */
static uint64_t ask(struct entry **entries, uint64_t count, uint64_t requests, uint64_t bytes,
                    uint64_t *random)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < requests && count > 0; i++) {
        struct entry **entry = &entries[random_below(random, count)];
        wrong += !is_whole(*entry);
        if (i % 8 == 0) {
            uint64_t key = (*entry)->key;
            free(*entry);
            *entry = make(key, bytes, random);
        }
    }
    return wrong;
}

int main(int argc, char **argv)
{
    uint64_t count = 20000, bytes = 1000, waves = 4, kept = 10, requests = 100000, seed = 1;
    bool in_order = false;
    const struct option_spec options[] = {
        {"entries", OPTION_COUNT, &count, 1, UINT32_MAX, "entries at the top of a wave"},
        {"bytes", OPTION_SIZE, &bytes, 16, MIB, "mean size of an entry"},
        {"waves", OPTION_COUNT, &waves, 1, UINT32_MAX, "waves"},
        {"kept", OPTION_COUNT, &kept, 0, 100, "percent of the entries that stay"},
        {"requests", OPTION_COUNT, &requests, 0, UINT32_MAX, "requests at each top and bottom"},
        {"in-order", OPTION_FLAG, &in_order, 0, 0, "remove the oldest, not any"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "seed of sizes, requests and removals"},
    };
    PARSE_OPTIONS(argc, argv, "Demand that rises and falls.", options);
    uint64_t random = seed, present = 0, next_key = 0, wrong = 0;
    struct entry **entries = allocate(count, sizeof *entries);
    for (uint64_t wave = 0; wave < waves; wave++) {
        while (present < count)
            entries[present++] = make(next_key++, bytes, &random);
        wrong += ask(entries, present, requests, bytes, &random);
        uint64_t left = count * kept / 100, gone = present - left;
        if (!in_order)
            for (uint64_t i = 0; i < gone; i++) {
                uint64_t other = i + random_below(&random, present - i);
                struct entry *entry = entries[i];
                entries[i] = entries[other];
                entries[other] = entry;
            }
        for (uint64_t i = 0; i < gone; i++)
            free(entries[i]);
        memmove(entries, entries + gone, left * sizeof *entries);
        present = left;
        wrong += ask(entries, present, requests, bytes, &random);
    }
    printf("waves: %" PRIu64 " entries added in %" PRIu64 " waves, %" PRIu64 " left\n", next_key,
           waves, present);
    for (uint64_t i = 0; i < present; i++) {
        wrong += !is_whole(entries[i]);
        free(entries[i]);
    }
    free(entries);
    if (wrong > 0)
        fail("validation failed: %" PRIu64 " wrong answers", wrong);
    printf("validation: passed\n");
    return finish();
}
