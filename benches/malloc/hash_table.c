/* A chained hash table of 2 million entries is filled, looked up at random, and emptied: what huge
 * pages are for. */
#include "bench.h"

struct entry {
    struct entry *next;
    uint64_t key;
    char value[40];
};
int main(void) {
    enum { SLOTS = 1 << 20, ENTRIES = 2000000 };
    struct entry **slots = calloc(SLOTS, sizeof *slots);
    uint64_t random = 5;
    for (int i = 0; i < ENTRIES; i++) {
        struct entry *entry = malloc(sizeof *entry);
        entry->key = next_random(&random);
        entry->next = slots[entry->key % SLOTS];
        slots[entry->key % SLOTS] = entry;
    }
    long found = 0;
    for (int round = 0; round < 3; round++) {
        random = 5;
        for (int i = 0; i < ENTRIES; i++) {
            uint64_t key = next_random(&random);
            for (struct entry *entry = slots[key % SLOTS]; entry; entry = entry->next)
                found += entry->key == key;
        }
    }
    for (int i = 0; i < SLOTS; i++)
        while (slots[i]) {
            struct entry *entry = slots[i];
            slots[i] = entry->next;
            free(entry);
        }
    free(slots);
    return found < ENTRIES;
}
