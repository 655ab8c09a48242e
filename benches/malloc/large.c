/* Buffers of 300 KB to 4 MB come and go, and a part of each is used. */
#include "bench.h"

int main(void) {
    enum { BUFFERS = 32 };
    static char *buffers[BUFFERS];
    uint64_t random = 31;
    for (int i = 0; i < 20000; i++) {
        int which = next_random(&random) % BUFFERS;
        size_t size = (300 << 10) + next_random(&random) % (4 << 20);
        free(buffers[which]);
        buffers[which] = malloc(size);
        memset(buffers[which], 1, size / 16);
    }
}
