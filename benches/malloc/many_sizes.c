/* One thread, sizes from 8 bytes to 128 KB, lifetimes from short to long. */
#include "bench.h"

int main(void) {
    enum { SLOTS = 20000 };
    static void *slots[SLOTS];
    uint64_t random = 9;
    for (int i = 0; i < 6000000; i++) {
        uint64_t where = next_random(&random);
        void **slot = &slots[where % 4 ? where % (SLOTS / 50) : where % SLOTS];
        size_t size = random_size(&random);
        free(*slot);
        *slot = use(malloc(size), size);
    }
}
