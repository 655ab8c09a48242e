/* Do contents survive when many threads allocate, reallocate, and free each other's memory? */
#include "common.h"

enum { SLOTS = 2048, STEPS = 150000 };
struct slot {
    pthread_mutex_t lock;
    void *memory;
    size_t size;
    uint64_t seed;
} slots[SLOTS];

static void *work(void *argument) {
    uint64_t random = 1234567 + 7919 * (uintptr_t)argument;
    for (int step = 0; step < STEPS; step++) {
        struct slot *slot = &slots[next_random(&random) % SLOTS];
        uint64_t what = next_random(&random);
        size_t size = what % 64 ? what % 700 : what % 4096 ? what % 40000 : what % 3000000;
        pthread_mutex_lock(&slot->lock);
        if (slot->memory) CHECK(stamped(slot->memory, slot->size, slot->seed));
        if (slot->memory && what >> 60 < 4) {
            slot->memory = realloc(slot->memory, size + 1);
            CHECK(slot->memory);
            slot->size = size + 1;
        } else {
            free(slot->memory);
            slot->size = size;
            slot->memory = what >> 60 == 5   ? calloc(1, size)
                           : what >> 60 == 6 ? memalign((size_t)16 << what % 10, size)
                                             : malloc(size);
            CHECK(slot->memory);
        }
        slot->seed = what;
        stamp(slot->memory, slot->size, slot->seed);
        if (what % 5000 == 0) malloc_trim(0);
        pthread_mutex_unlock(&slot->lock);
    }
    return NULL;
}

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : 8;
    pthread_t ids[256];
    for (int i = 0; i < SLOTS; i++) pthread_mutex_init(&slots[i].lock, NULL);
    for (int i = 0; i < threads; i++)
        CHECK(!pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)(i + 1)));
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    for (int i = 0; i < SLOTS; i++)
        CHECK(!slots[i].memory || stamped(slots[i].memory, slots[i].size, slots[i].seed));
    return 0;
}
